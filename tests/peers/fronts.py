"""Vestibule in front of the chat servers: the settings that the checks of XMPP share."""

import servers
from harness import port


class Front:
    """A running proxy; `ports` by kind of listener: starttls, direct, auto, s2s, s2s_direct."""

    def __init__(self, process, ports, settings):
        self.process, self.ports, self.settings = process, ports, settings


def front(
    scope, *behind, kinds=("starttls", "direct"), proxy_protocol="v2", tlvs=None, listener="", upstream="", more="",
    flags=(), cert="ecdsa", ports=None, **options,
):
    """Vestibule for the servers `behind`, the first of which is where streams go that no route takes.

    `behind` may hold a `Server`, or a port of a backend of the check's own. `listener` and `upstream` are lines
    for each of those tables, `more` is the rest of the file, `ports` those of an earlier front to take over.
    """
    schemes = {
        "starttls": "xmpp", "direct": "xmpps", "auto": "auto", "s2s": "xmpp-server", "s2s_direct": "xmpps-server",
    }
    ports = ports or {kind: port() for kind in kinds}
    text = []
    for kind in kinds:
        first = name_of(behind[0], kind)
        text.append(
            f'[[listener]]\nname = "{kind}"\nlisten = "{schemes[kind]}://127.0.0.1:{ports[kind]}"\n'
            f'upstream = "{first}"\n{listener}\n'
        )
    doors = sorted({"s2s" if kind.startswith("s2s") else "c2s" for kind in kinds})
    for server in behind:
        for door in doors:
            name = f"{getattr(server, 'name', 'own')}-{door}"
            address = server.doors[door] if isinstance(server, servers.Server) else server
            text.append(
                f'[[upstream]]\nname = "{name}"\nproxy_protocol = "{proxy_protocol}"\n'
                + (f"proxy_tlvs = {list(tlvs)}\n".replace("'", '"') if tlvs is not None else "")
                + f'{upstream}\n[[upstream.backend]]\naddress = "127.0.0.1:{address}"\n'
            )
            if isinstance(server, servers.Server):
                protocol = "xmpp-server" if door == "s2s" else "xmpp-client"
                text.append(
                    f'[[route]]\nhosts = ["{server.host}"]\nprotocol = "{protocol}"\nupstream = "{name}"\n'
                )
    settings = scope.folder() / "vestibule.toml"
    settings.write_text("\n".join(text) + more)
    if "--drain-timeout" not in flags:
        flags = ("--drain-timeout", "100ms", *flags)  # Streams may be open when a check is over.
    process = scope.vestibule("--config", settings, *flags, cert=cert, **options)
    return Front(process, ports, settings)


def name_of(server, kind):
    return f"{getattr(server, 'name', 'own')}-{'s2s' if kind.startswith('s2s') else 'c2s'}"
