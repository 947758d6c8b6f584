"""Users of Prosody and ejabberd with the clients of other people, through Vestibule."""

import contextlib
import os
import re
import signal
import sys
import uuid
from pathlib import Path

import servers
from fronts import front
from harness import CERTS, ROOT, Missing, check, expect, expect_equal, expect_in, metric, until
from servers import PASSWORD
from xmpp import login

HERE = Path(__file__).resolve().parent
NODE = ROOT / "target" / "node"
ELSEWHERE = "127.0.0.9"  # a client's address that is not the proxy's own
BOTH = ("root", "prosody", "ejabberdctl")


def each_server():
    return servers.prosody(), servers.ejabberd()


def slix(what, server, number, mode, *more, trust=CERTS / "ecdsa.cert.pem"):
    return (sys.executable, HERE / "slix.py", what, server.host, number, mode, trust, *more)


def talk(scope, server, number, mode, avatar=0, trust=CERTS / "ecdsa.cert.pem", tls=""):
    """Two slixmpp users talk; the server must have seen their own address. `avatar` is the size of one that is
    published, `tls` the only version that the clients speak."""
    since = server.mark()
    environment = {**os.environ, "PEERS_SOURCE": ELSEWHERE, "PEERS_TLS": tls}
    code, out = scope.run(*slix("talk", server, number, mode, avatar, trust=trust), env=environment)
    if "No module named 'slixmpp'" in out:
        raise Missing("slixmpp (PyPI)")
    expect_equal(code, 0, f"slixmpp, {server.name}, {mode}: {out[-3000:]}")
    expect_equal(out.count("heard:"), 4, f"messages that arrived: {out[-3000:]}")
    server.wait_log(since, re.escape(ELSEWHERE))


@check("slixmpp: STARTTLS login, roster, messages, a 200 kB avatar; the servers see the client's address", needs=BOTH)
def slix_starttls(scope):
    for server in each_server():
        proxy = front(scope, server)
        talk(scope, server, proxy.ports["starttls"], "starttls", 200_000)


@check("slixmpp: Direct TLS without ALPN, PROXY v1 and v2", needs=BOTH)
def slix_direct(scope):
    for server in each_server():
        for version in ("v1", "v2"):
            proxy = front(scope, server, proxy_protocol=version)
            talk(scope, server, proxy.ports["direct"], "direct")


@check("one port, two domains: users reach the server of theirs, by STARTTLS and Direct TLS", needs=BOTH)
def slix_routed(scope):
    proxy = front(scope, *each_server(), kinds=("auto",))
    for server, mode in zip(each_server(), ("direct", "starttls")):
        talk(scope, server, proxy.ports["auto"], mode)
        talk(scope, server, proxy.ports["auto"], "starttls" if mode == "direct" else "direct")


@check("@xmpp/client: STARTTLS, and Direct TLS without SNI", needs=(*BOTH, "node"))
def node(scope):
    for server in each_server():
        proxy = front(scope, *sorted(each_server(), key=lambda other: other is not server))
        for scheme, kind in (("xmpp", "starttls"), ("xmpps", "direct")):
            client = node_client(scope, proxy.ports[kind], server, scheme)
            expect_equal(client.wait(15), 0, f"@xmpp/client, {server.name}, {kind}: {client.text[-2000:]}")
            expect_in("heard:", client.text, f"{server.name}, {kind}")


def node_client(scope, number, server, scheme, *more):
    if not (NODE / "node_modules" / "@xmpp" / "client").exists():
        raise Missing("@xmpp/client (npm, in target/node)")
    url = f"{scheme}://127.0.0.1:{number}"
    return scope.start("node", HERE / "talk.mjs", url, server.host, "bob", *more, cwd=NODE)


@check("go-sendxmpp: STARTTLS and Direct TLS, sends and receives", needs=(*BOTH, "go-sendxmpp"))
def sendxmpp(scope):
    for server in each_server():
        proxy = front(scope, server)
        for kind, flags in (("starttls", ()), ("direct", ("-t",))):
            login = ("-n", *flags, "-p", PASSWORD, "-j", f"127.0.0.1:{proxy.ports[kind]}")
            text = f"sent by go-sendxmpp {uuid.uuid4()}"
            listener = scope.start("go-sendxmpp", *login, "-d", "-u", f"bob@{server.host}", "-l")
            # Its debug output shows the stream: once the presence is out, messages reach it.
            listener.wait_for("<presence", wait=20)
            code, out = scope.run(
                "sh", "-c", 'printf "%s\\n" "$0" | go-sendxmpp "$@"', text,
                *login, "-u", f"alice@{server.host}", f"bob@{server.host}", wait=30,
            )
            expect_equal(code, 0, f"go-sendxmpp as sender, {server.name}, {kind}: {out[-2000:]}")
            listener.wait_for(text, wait=15)
            listener.end()


@check("profanity: STARTTLS and Direct TLS, sends and receives", needs=(*BOTH, "profanity", "tmux"))
def profanity(scope):
    for server in each_server():
        proxy = front(scope, server)
        for kind, tls in (("starttls", "trust"), ("direct", "legacy")):
            with Terminal(scope, server) as terminal:
                terminal.type(
                    f"/connect alice@{server.host} server 127.0.0.1 port {proxy.ports[kind]} tls {tls}"
                )
                terminal.until("(?i)password")
                terminal.type(PASSWORD)
                if tls == "legacy":
                    terminal.until("/tls allow")
                    terminal.type("/tls allow")
                terminal.until(r"(?i)logged in successfully|alice@\S+ \(online\)")
                with login(server, proxy.ports["starttls"], user="bob") as bob:
                    bob.send("<presence/>")
                    text, answer = (f"{word}-{uuid.uuid4().hex[:8]}" for word in ("sent", "answered"))
                    terminal.type(f"/msg bob@{server.host} {text}")
                    bob.read(text)
                    bob.send(f"<message to='alice@{server.host}' type='chat'><body>{answer}</body></message>")
                    terminal.until(answer)
                    bob.close()


class Terminal:
    """profanity in a terminal of its own, which a tmux server of its own holds."""

    def __init__(self, scope, server):
        self._folder = scope.folder()
        self._environment = {
            **os.environ, "HOME": str(self._folder), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8",
            "XDG_CONFIG_HOME": str(self._folder / "config"), "XDG_DATA_HOME": str(self._folder / "data"),
        }
        self._scope = scope

    def _tmux(self, *words):
        code, out = self._scope.run("tmux", "-S", self._folder / "tmux", *words, env=self._environment)
        expect_equal(code, 0, f"tmux {words[0]}: {out}")
        return out

    def __enter__(self):
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "200", "-y", "60", "profanity", "-l", "DEBUG")
        self.until("(?i)type '/help'|profanity")
        return self

    def __exit__(self, *_):
        with contextlib.suppress(Exception):
            self._tmux("kill-server")

    def type(self, line):
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def until(self, pattern):
        try:
            until(lambda: re.search(pattern, self._screen()), f"{pattern!r} on the screen", wait=15)
        except Exception as failed:
            raise type(failed)(f"{failed}\n{self._screen()}") from None

    def _screen(self):
        return self._tmux("capture-pane", "-p")


@check("XEP-0198: sessions go on after the proxy was killed, and after it was drained", needs=BOTH)
def resumption(scope):
    prosody, ejabberd = each_server()
    for server, kind, how in (
        (prosody, "starttls", signal.SIGKILL),
        (prosody, "direct", signal.SIGTERM),
        (ejabberd, "direct", signal.SIGKILL),
        (ejabberd, "starttls", signal.SIGTERM),
    ):
        proxy = front(scope, server, flags=("--drain-timeout", "1s"))
        client = scope.start(*slix("resume", server, proxy.ports[kind], kind))
        client.wait_for("event: sm_enabled", wait=15)
        proxy.process.signal(how)
        client.wait_for("event: disconnected", wait=15)
        proxy.process.wait()
        again = front(scope, server, ports=proxy.ports)
        seen = len(client.text)
        client.send("again\n")
        client.wait_for("event: session_resumed", wait=15, after=seen)
        client.send("enough\n")
        expect_equal(client.wait(15), 0, f"exit code of the client, {server.name}, {how.name}")
        again.process.end()


@check("a drain says so to its users: where to go, or that the house closes", needs=BOTH)
def drain_words(scope):
    for server in each_server():
        for words, told in (
            ("see-other-host=elsewhere.test:5222", ">elsewhere.test:5222</see-other-host>"),
            ("system-shutdown", "<system-shutdown "),
            ("close", ""),
        ):
            proxy = front(scope, server, more=f'\n[xmpp]\non_drain = "{words}"\n', flags=("--drain-timeout", "500ms"))
            users = [login(server, proxy.ports[mode], mode) for mode in ("starttls", "direct")]
            # The log may lag behind: only what comes after these logins counts.
            until(lambda: all(user.jid in server.log for user in users), "the logins in the log")
            since = server.mark()
            proxy.process.signal(signal.SIGTERM)
            for user in users:
                with user:
                    answer = user.read_end()
                    expect_in(told, answer, f"{server.name}, {words}")
                    expect_equal("</stream:stream>" in answer, bool(told), f"a goodbye, {words}: {answer}")
            expect_equal(proxy.process.wait(), 0, "exit code")
            # A goodbye would end sessions that can be resumed.
            goodbyes = re.findall("Received.*</stream:stream>.*", since())
            expect(not goodbyes, f"{server.name} was told goodbye: {goodbyes}")


@check("a drain that names another host: @xmpp/client goes there by itself", needs=(*BOTH, "node"))
def see_other_host(scope):
    server = servers.prosody()
    other = front(scope, server, kinds=("starttls",))
    drain = f'\n[xmpp]\non_drain = "see-other-host=127.0.0.1:{other.ports["starttls"]}"\n'
    proxy = front(scope, server, kinds=("starttls",), more=drain, flags=("--drain-timeout", "1s"))
    client = node_client(scope, proxy.ports["starttls"], server, "xmpp", "stay")
    client.wait_for("heard:", wait=15)
    since = server.mark()
    proxy.process.signal(signal.SIGTERM)
    # The client keeps its session and so says nothing; the server does.
    server.wait_log(since, "(?s)Client is 127.0.0.1.*over TLS.*Received.*<resume .*Sending.*<resumed ")
    expect(metric(other.process, "vestibule_connections_total") >= 1, "nobody came to the other host")
    client.end_input()
    expect_equal(client.wait(15), 0, f"exit code of the client: {client.text}")
