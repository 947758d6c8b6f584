"""Prosody and ejabberd as the backends of the checks, started once for the whole run.

Their settings are the examples under config/, with other ports, folders and names put in. Prosody serves
chat.test and plain.wild.test, ejabberd serves other.test; each has the same users. A server has several doors:

    c2s     client streams behind a PROXY header
    s2s     server streams behind a PROXY header
    plain   client streams without one (at Prosody for plain.wild.test alone)
    tls     at ejabberd: its own Direct TLS for clients behind a PROXY header, for streams that are passed through
    s2s_tls its own Direct TLS for servers: at Prosody without a PROXY header, at ejabberd behind one
    http    BOSH and WebSocket, as docs/http.md has them: /http-bind and /xmpp-websocket, /bosh and /ws

Both look each other up in a DNS server on loopback (`Names`), where a check says what a name leads to.
"""

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import threading
from pathlib import Path

from harness import ROOT, expect, expect_equal, listening, port, shared, tail, until

PASSWORD = "secret1"
USERS = ("alice", "bob")
CONFIG = ROOT / "config"


class Server:
    """A running server: `name`, `host` (its domain), `doors` (ports by name), `process`."""

    def __init__(self, name, host, doors, process):
        self.name, self.host, self.doors, self.process = name, host, doors, process

    @property
    def log(self):
        """All that the server has logged so far."""
        return self.process.text

    def mark(self):
        """A function that returns what was logged since this call."""
        seen = len(self.log)
        return lambda: self.log[seen:]

    def wait_log(self, since, pattern, wait=10):
        """Waits for a line in what `since` (from `mark`) returns; returns the match."""
        try:
            return until(lambda: re.search(pattern, since()), f"{pattern!r} in the log of {self.name}", wait)
        except Exception as failed:
            raise type(failed)(f"{failed}\n{tail(since())}") from None


def prosody():
    return shared(_prosody)


def ejabberd():
    return shared(_ejabberd)


def names():
    return shared(_names)


def _names(scope):
    return scope.enter_context(Names())


def authority():
    """A folder with a CA and the certificates that it gave to the servers: NAME.cert.pem, NAME.key.pem."""
    return shared(_authority)


def _authority(scope):
    folder = scope.folder()

    def openssl(*words):
        code, out = scope.run("openssl", *words)
        expect_equal(code, 0, f"openssl {' '.join(map(str, words))}: {out}")

    def request(name, *words):
        openssl(
            "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "30",
            "-keyout", folder / f"{name}.key.pem", "-out", folder / f"{name}.cert.pem", "-subj", f"/CN={name}",
            *words,
        )

    request("ca", "-addext", "keyUsage=critical,keyCertSign")
    for name in ("chat.test", "other.test"):
        request(
            name, "-CA", folder / "ca.cert.pem", "-CAkey", folder / "ca.key.pem",
            "-addext", f"subjectAltName=DNS:{name}", "-addext", "basicConstraints=critical,CA:FALSE",
            "-addext", "extendedKeyUsage=serverAuth,clientAuth",
        )
    for file in folder.iterdir():
        file.chmod(0o644)
    return folder


def owned(folder, user):
    """Gives a folder and all in it to the server's own user; returns how to run as that user."""
    entry = pwd.getpwnam(user)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, entry.pw_uid, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": folder}


def example(path, changes):
    """The text of a file in config/ with parts replaced, each of which must be there."""
    text = (CONFIG / path).read_text()
    for old, new in changes.items():
        expect(old in text, f"config/{path} has no {old!r}")
        text = text.replace(old, str(new))
    return text


def _prosody(scope):
    folder = scope.folder()
    doors = {"c2s": port(), "s2s": port(), "plain": port(), "s2s_tls": port(), "http": port()}
    for name in ("data", "certs", "modules"):
        (folder / name).mkdir()
    shutil.copy(CONFIG / "prosody" / "mod_vestibule.lua", folder / "modules")
    trust = authority()
    shutil.copy(trust / "chat.test.cert.pem", folder / "certs" / "chat.test.crt")
    shutil.copy(trust / "chat.test.key.pem", folder / "certs" / "chat.test.key")
    text = example("prosody/prosody.cfg.lua", {
        "vestibule_ports = { 5322 }": f"vestibule_ports = {{ {doors['c2s']} }}",
        "vestibule_s2s_ports = { 5369 }": f"vestibule_s2s_ports = {{ {doors['s2s']} }}",
        "/usr/local/lib/prosody/modules": folder / "modules",
        "/etc/prosody/certs": folder / "certs",
        '"smacks";': '"smacks"; "websocket"; "bosh";',
        "c2s_ports = {}": f"c2s_ports = {{ {doors['plain']} }}; c2s_interfaces = {{ '127.0.0.1' }}",
        "s2s_direct_tls_ports = {}":
            f"s2s_direct_tls_ports = {{ {doors['s2s_tls']} }}; s2s_direct_tls_interfaces = {{ '127.0.0.1' }}",
    })
    config = folder / "prosody.cfg.lua"
    config.write_text(f"""-- What a test needs beside the example.
daemonize = false
pidfile = "{folder}/prosody.pid"
data_path = "{folder}/data"
log = {{ {{ levels = {{ min = "debug" }}, to = "console" }} }}
http_interfaces = {{ "127.0.0.1" }}; http_ports = {{ {doors['http']} }}; https_ports = {{}}
trusted_proxies = {{ "127.0.0.1" }}
vestibule_header_timeout = 1
vestibule_v1_is_secure = true
ssl = {{ cafile = "{trust}/ca.cert.pem" }}
unbound = {{
  resolvconf = false; forward = "127.0.0.1@{names().port}";
  options = {{ ["do-not-query-localhost:"] = "no"; ["local-zone:"] = "test. transparent" }};
}}

{text}
VirtualHost "plain.wild.test"
  c2s_require_encryption = false
  allow_unencrypted_plain_auth = true
""")
    who = owned(folder, "prosody")
    for host in ("chat.test", "plain.wild.test"):
        for user in USERS:
            code, out = scope.run("prosodyctl", "--config", config, "register", user, host, PASSWORD, **who)
            expect_equal(code, 0, f"prosodyctl register {user} {host}: {out}")
    process = scope.start("prosody", "--config", config, "-F", **who)
    until(lambda: all(map(listening, doors.values())) or not process.running, "Prosody", wait=20)
    expect(process.running, f"Prosody ended:\n{process.text}")
    return Server("Prosody", "chat.test", doors, process)


def _ejabberd(scope):
    folder = scope.folder()
    doors = {"c2s": port(), "s2s": port(), "plain": port(), "tls": port(), "s2s_tls": port(), "http": port()}
    trust = authority()
    for name in ("spool", "logs", "certs"):
        (folder / name).mkdir()
    (folder / "certs" / "other.test.pem").write_text(
        (trust / "other.test.cert.pem").read_text() + (trust / "other.test.key.pem").read_text()
    )
    own_tls = "    tls: true\n    use_proxy_protocol: true\n"
    more = "".join(
        f'  - port: {doors[door]}\n    ip: "127.0.0.1"\n    module: {module}\n{options}'
        for door, module, options in (
            ("plain", "ejabberd_c2s", "    access: all\n"),
            ("tls", "ejabberd_c2s", "    access: all\n" + own_tls),
            ("s2s_tls", "ejabberd_s2s_in", own_tls),
            ("http", "ejabberd_http", "    request_handlers:\n      /ws: ejabberd_http_ws\n      /bosh: mod_bosh\n"),
        )
    )
    text = example("ejabberd/ejabberd.yml", {
        "  - chat.test": "  - other.test",
        "port: 5322": f"port: {doors['c2s']}",
        "port: 5369": f"port: {doors['s2s']}",
        "/etc/ejabberd/certs": folder / "certs",
        "  mod_caps: {}": "  mod_bosh: {}\n  mod_caps: {}",
        "\nlisten:\n": f"\nloglevel: debug\nca_file: {trust}/ca.cert.pem\ns2s_max_retry_delay: 1\n"
        'trusted_proxies: [127.0.0.0/8, "::1/128"]'
        f"\nlisten:\n{more}",
    })
    (folder / "ejabberd.yml").write_text(text)
    # The empty files come first: they would empty the list of name servers behind them.
    (folder / "inetrc").write_text(
        '{resolv_conf, ""}.\n{hosts_file, ""}.\n{host, {127,0,0,1}, ["localhost"]}.\n'
        f"{{lookup, [file, dns]}}.\n{{nameserver, {{127,0,0,1}}, {names().port}}}.\n"
    )
    node = f"vestibule{doors['c2s']}@localhost"
    # A port mapper of its own, on loopback, that is ended with the check.
    mapper = port()
    (folder / "ejabberdctl.cfg").write_text(
        f"ERLANG_NODE={node}\nINET_DIST_INTERFACE=127.0.0.1\nERL_EPMD_ADDRESS=127.0.0.1\n"
        f"export ERL_EPMD_PORT={mapper}\n"
    )
    environment = {
        **os.environ, "HOME": str(folder), "ERL_EPMD_PORT": str(mapper), "ERL_EPMD_ADDRESS": "127.0.0.1"
    }
    who = {**owned(folder, "ejabberd"), "env": environment}
    control = (
        "ejabberdctl", "--config-dir", folder, "--config", folder / "ejabberd.yml",
        "--ctl-config", folder / "ejabberdctl.cfg", "--logs", folder / "logs",
        "--spool", folder / "spool", "--node", node,
    )
    epmd = shutil.which("epmd") or "/usr/bin/epmd"
    scope.start(epmd, "-address", "127.0.0.1", "-port", mapper, **who)
    until(lambda: listening(mapper), "epmd")
    process = scope.start(*control, "foreground", **who)

    def stop():
        if process.running:
            code, _ = scope.run(*control, "stop", **who)
            if code == 0:
                process.wait(20)
            else:  # The process is a shell script, whose end would leave Erlang running.
                for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)

    scope.callback(stop)
    # Its ports are open before its tables are there.
    until(lambda: "is started in the node" in process.text or not process.running, "ejabberd", wait=60)
    expect(process.running, f"ejabberd ended:\n{process.text}")
    for user in USERS:
        code, out = scope.run(*control, "register", user, "other.test", PASSWORD, **who)
        expect_equal(code, 0, f"ejabberdctl register {user}: {out}")
    return Server("ejabberd", "other.test", doors, process)


class Names:
    """A DNS server on loopback, UDP alone. It knows the services that a check gives a port, all at localhost;
    everything else does not exist."""

    SRV = 33

    def __init__(self):
        self.port = port()
        self.services = {}  # "_xmpp-server._tcp.chat.test": port
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                query, client = self._socket.recvfrom(4096)
                if len(query) < 12:  # The socket was shut.
                    return
                self._socket.sendto(self._answer(query), client)

    def _answer(self, query):
        labels, at = [], 12
        while size := query[at]:
            labels.append(query[at + 1:at + 1 + size].decode("ascii", "replace").lower())
            at += 1 + size
        name, question = ".".join(labels), query[12:at + 5]
        (kind,) = struct.unpack(">H", query[at + 1:at + 3])
        data = None
        if kind == self.SRV and name in self.services:
            # A name that ejabberd's C library can resolve, which it asks for addresses.
            data = struct.pack(">HHH", 0, 0, self.services[name]) + b"\x09localhost\0"
        # Answer, recursion desired and available; "no such name" for what nobody serves. Neither may be cached:
        # the next check may say something else.
        flags = 0x8180 if data else 0x8183
        head = query[:2] + struct.pack(">HHHHH", flags, 1, 1 if data else 0, 0 if data else 1, 0)
        if data:
            return head + question + b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(data)) + data
        start = b"\0\0" + struct.pack(">IIIII", 1, 60, 60, 60, 0)
        return head + question + b"\x04test\0" + struct.pack(">HHIH", 6, 1, 0, len(start)) + start
