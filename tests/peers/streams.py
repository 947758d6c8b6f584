"""What went wrong with XMPP streams behind other proxies, each as its user would have seen it.

Rows that need a real server or a real client; the protocol itself is tested in tests/proxy.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import threading
import time

import servers
from chat import BOTH, ELSEWHERE, each_server, talk
from fronts import front
from harness import CERTS, check, expect, expect_equal, expect_in, port, until
from proxying import v1
from servers import PASSWORD
from xmpp import Stream, header, login

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


@check(
    "openssl s_client -starttls xmpp and xmpp-server get through, on their own port and on the common one",
    needs=(*BOTH, "openssl"),
)
def s_client(scope):
    server = servers.ejabberd()
    proxy = front(scope, server, kinds=("starttls", "s2s", "auto"), listener='tls = "terminate"')
    for kind, speaks in (("starttls", "xmpp"), ("s2s", "xmpp-server"), ("auto", "xmpp"), ("auto", "xmpp-server")):
        code, out = scope.run(
            "openssl", "s_client", "-connect", f"127.0.0.1:{proxy.ports[kind]}", "-starttls", speaks,
            "-xmpphost", server.host, "-servername", server.host, "-CAfile", CERTS / "ecdsa.cert.pem",
            "-verify_hostname", server.host, "-verify_return_error", wait=15,
        )
        expect_equal(code, 0, f"s_client -starttls {speaks} on {kind}: {out[-1500:]}")
        expect_in("Verify return code: 0 (ok)", out, f"-starttls {speaks} on {kind}")


@check("one port takes STARTTLS, Direct TLS with ALPN, without ALPN, and without a server name", needs=BOTH)
def one_port(scope):
    proxy = front(scope, *each_server(), kinds=("auto",))
    number = proxy.ports["auto"]
    for server in each_server():
        login(server, number).close()
        login(server, number, "direct", alpn=["xmpp-client"]).close()
        login(server, number, "direct").close()
        with Stream(number) as stream:
            stream.tls(None)
            stream.login("alice", PASSWORD, stream.open(server.host))


@check("a web browser on an XMPP port gets an error of XMPP before TLS and an alert of ALPN in it", needs=BOTH)
def wrong_protocol(scope):
    proxy = front(scope, servers.prosody())
    with Stream(proxy.ports["starttls"]) as stream:
        stream.send("GET / HTTP/1.1\r\nHost: chat.test\r\n\r\n")
        expect_in("<not-well-formed", stream.read_end(), "the answer to HTTP")
    try:
        Stream(proxy.ports["direct"]).tls("chat.test", alpn=["http/1.1"])
        expect(False, "a browser's ALPN was accepted")
    except ssl.SSLError as error:
        expect_in("no application protocol", str(error), "the alert")


@check("an unknown host is refused before TLS, in the words of RFC 6120", needs=BOTH)
def unknown_host(scope):
    proxy = front(scope, *each_server())
    for name in ("nowhere.invalid", "chat.test.invalid", "test"):
        with Stream(proxy.ports["starttls"]) as stream:
            answer = stream.open(name) + stream.read_end()
            expect_in("<host-unknown", answer, name)
            expect_in("</stream:stream>", answer, name)


@check("a user who says goodbye gets the server's goodbye, and an end that is not cut off", needs=BOTH)
def goodbye(scope):
    # Neither server answers a goodbye that comes with a FIN behind it, with or without a proxy.
    for server in each_server():
        proxy = front(scope, server)
        for mode in ("starttls", "direct"):
            last = login(server, proxy.ports[mode], mode).close()
            expect(last.endswith("</stream:stream>"), f"{server.name}, {mode}: {last}")


@check("a client that could bind its login to TLS, but is offered none, logs in", needs=BOTH)
def channel_binding_flag(scope):
    for server in each_server():
        proxy = front(scope, server)
        with Stream(proxy.ports["starttls"]) as stream:
            stream.open(server.host)
            stream.starttls()
            expect("-PLUS" not in stream.open(server.host), "a binding was offered that cannot hold")
            expect_in("<success", stream.authenticate("alice", PASSWORD, "SCRAM-SHA-256", flag="y"), server.name)


@check("SCRAM-SHA-256-PLUS: logins bound to the client's own TLS, by exporter and by certificate", needs=BOTH)
def channel_binding(scope):
    server = servers.prosody()
    tlvs = ("alpn", "authority", "unique_id", "ssl", "binding")
    proxy = front(scope, server, tlvs=tlvs)
    for kind in ("starttls", "direct"):
        for binding in ("tls-exporter", "tls-server-end-point"):
            for good in (True, False):
                with Stream(proxy.ports[kind]) as stream:
                    if kind == "starttls":
                        stream.open(server.host)
                        stream.starttls(exporter=True)
                    else:
                        stream.tls(server.host, exporter=True)
                    data = stream.socket.binding(binding)
                    features = stream.open(server.host)
                    expect_in(f"<channel-binding type='{binding}'/>", features, "XEP-0440")
                    answer = stream.authenticate(
                        "alice", PASSWORD, "SCRAM-SHA-256-PLUS", (binding, data if good else bytes(32))
                    )
                    expect_in("<success" if good else "<failure", answer, f"{kind}, {binding}")


@check("where bindings are offered, clients that know none, or others, log in as before", needs=BOTH)
def other_bindings(scope):
    server = servers.prosody()
    proxy = front(scope, server, tlvs=("unique_id", "ssl", "binding"))
    for version in ("1.3", "1.2"):
        talk(scope, server, proxy.ports["starttls"], "starttls", tls=version)


@check("passed through: clients see the server's own certificate, servers the client's address", needs=BOTH)
def passed_through(scope):
    for server, mode in zip(each_server(), ("starttls", "direct")):
        behind = server.doors["tls" if mode == "direct" else "c2s"]
        proxy = front(scope, behind, listener='tls = "passthrough"', more="\n[xmpp]\nprobe = false\n")
        since = server.mark()
        trust = servers.authority() / "ca.cert.pem"
        talk(scope, server, proxy.ports[mode], mode, trust=trust)
        server.wait_log(since, re.escape(ELSEWHERE))


@check("behind another balancer: its PROXY header is believed from listed addresses, and demanded", needs=BOTH)
def behind_another(scope):
    for server in each_server():
        inner = front(scope, server, listener='accept_proxy_protocol = ["127.0.0.1/32"]')
        outer = front(
            scope, inner.ports["starttls"], kinds=("starttls",), listener='tls = "passthrough"',
            more="\n[xmpp]\nprobe = false\n",
        )
        since = server.mark()
        login(server, outer.ports["starttls"], source=ELSEWHERE).close()
        server.wait_log(since, re.escape(ELSEWHERE))
        with Stream(inner.ports["starttls"], v1("203.0.113.9")) as stream:
            stream.open(server.host)
            stream.starttls()
            stream.login("alice", PASSWORD, stream.open(server.host))
        server.wait_log(since, "203.0.113.9")
        with Stream(inner.ports["starttls"]) as stream:
            stream.send(header(server.host))
            expect("<stream" not in stream.read_end(), "a listed address without a header was served")
        with Stream(inner.ports["starttls"], v1("203.0.113.10"), source=ELSEWHERE) as stream:
            stream.read_end()
        expect("203.0.113.10" not in since(), "a header from an unlisted address was believed")


@check("before the login a client cannot make the server parse much, after it a stanza may be large", needs=BOTH)
def guarded(scope):
    for server in each_server():
        proxy = front(scope, server)
        for name, flood in (
            ("a large element", "<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' x='" + "a" * 20_000),
            ("a deep element", "<a>" * 50),
            ("many elements", "<iq type='get' id='a'/>" * 100),
            ("a comment", "<!-- " + "a" * 100),
        ):
            with Stream(proxy.ports["direct"]).tls(server.host) as stream:
                stream.open(server.host)
                with contextlib.suppress(OSError):
                    stream.send(flood)
                answer = stream.read_end()
                expect(re.search("policy-violation|restricted-xml|not-authorized", answer), f"{name}: {answer}")
        with login(server, proxy.ports["direct"], "direct") as user:
            user.send(f"<iq type='get' id='big'><ping xmlns='urn:xmpp:ping'/><x xmlns='x:y'>{'a' * 150_000}</x></iq>")
            user.read("id=['\"]big['\"]")
            user.close()


@check("a health probe disturbs neither server: no login waits, no log line complains", needs=BOTH)
def probe(scope):
    marks = [(server, server.mark()) for server in each_server()]
    proxy = front(scope, *each_server())
    for server, since in marks:
        started = time.monotonic()
        login(server, proxy.ports["starttls"]).close()
        expect(time.monotonic() - started < 2, f"a login at {server.name} took {time.monotonic() - started:.1f} s")
        for complaint in ("not-well-formed", "bad PROXY header", "no complete PROXY header", "einval", "malformed"):
            expect(complaint not in since(), f"{server.name} complains: {complaint}")


@check("both servers take every PROXY header that Vestibule can write", needs=BOTH)
def headers(scope):
    for server in each_server():
        for version, tlvs in (
            ("v1", None),
            ("v2", ()),
            ("v2", ("alpn", "authority", "unique_id", "ssl")),
            ("v2", ("alpn", "authority", "unique_id", "ssl", "crc32c")),
            ("v2", ("unique_id", "ssl", "crc32c", "binding")),
        ):
            if server.name == "Prosody" and version == "v2" and "ssl" not in tlvs:
                continue  # mod_vestibule must be told of TLS.
            proxy = front(scope, server, proxy_protocol=version, tlvs=tlvs)
            since = server.mark()
            for mode in ("starttls", "direct"):
                login(server, proxy.ports[mode], mode, source=ELSEWHERE).close()
            server.wait_log(since, re.escape(ELSEWHERE))
            proxy.process.end()


@check("without PROXY headers: ejabberd, and Prosody whose offer of STARTTLS is taken out", needs=BOTH)
def no_headers(scope):
    ejabberd = servers.ejabberd()
    proxy = front(scope, ejabberd.doors["plain"], proxy_protocol="off")
    login(ejabberd, proxy.ports["starttls"]).close()
    prosody = servers.prosody()
    with Stream(prosody.doors["plain"]) as stream:
        expect_in("<starttls", stream.open("plain.wild.test"), "what Prosody offers")
    proxy = front(scope, prosody.doors["plain"], proxy_protocol="off")
    with Stream(proxy.ports["starttls"]) as stream:
        stream.open("plain.wild.test")
        stream.starttls()
        features = stream.open("plain.wild.test")
        expect("starttls" not in features, f"STARTTLS inside TLS: {features}")
        stream.login("alice", PASSWORD, features)


@check(
    "a server that insists on STARTTLS: users are told at once, the log names the way out, and it is one",
    needs=BOTH,
)
def insists(scope):
    server = servers.prosody()
    # Not told that the client is inside TLS, mod_vestibule leaves STARTTLS to Prosody, which requires it.
    proxy = front(scope, server, tlvs=("unique_id",))
    with Stream(proxy.ports["direct"]).tls(server.host) as stream:
        answer = stream.open(server.host) + stream.read_end()
        expect_in("<internal-server-error", answer, "what the user is told")
    proxy.process.wait_for('mod_vestibule.*ejabberd.*starttls = "speak"')
    trust = servers.authority() / "ca.cert.pem"
    again = front(scope, server, tlvs=("unique_id",), upstream=f'starttls = "speak"\nca = ["{trust}"]')
    since = server.mark()
    for mode in ("direct", "starttls"):
        login(server, again.ports[mode], mode, source=ELSEWHERE).close()
    server.wait_log(since, f"(?s){re.escape(ELSEWHERE)}.*Stream encrypted")


@check("a renewed certificate is shown by STARTTLS and Direct TLS after SIGHUP, and open streams live on", needs=BOTH)
def renewed(scope):
    server = servers.prosody()
    folder = scope.folder()

    def put(name):
        for part in ("cert", "key"):
            shutil.copy(CERTS / f"{name}.{part}.pem", folder / f"{part}.pem")

    def shown(mode):
        with login(server, proxy.ports[mode], mode) as stream:
            return stream.socket.getpeercert(binary_form=True)

    put("ecdsa")
    proxy = front(scope, server, cert=None, flags=("--cert", folder / "cert.pem", "--key", folder / "key.pem"))
    users = [(login(server, proxy.ports[mode], mode), shown(mode), mode) for mode in ("starttls", "direct")]
    put("rsa")
    proxy.process.signal(signal.SIGHUP)
    for user, old, mode in users:
        until(lambda: shown(mode) != old, f"the new certificate, {mode}")
        user.send("<iq type='get' id='p'><ping xmlns='urn:xmpp:ping'/></iq>")
        user.read("id='p'")
        user.close()


@check("200 silent strangers and 200 half hellos hold up nobody's login, and not ejabberd", needs=BOTH)
def strangers(scope):
    for server in each_server():
        proxy = front(scope, server)
        for first, number in (
            (b"", proxy.ports["starttls"]),
            (b"", proxy.ports["direct"]),
            (header(server.host).encode()[:40], proxy.ports["starttls"]),
            (b"\x16\x03\x01\x02", proxy.ports["direct"]),
        ):
            for _ in range(100):
                scope.enter_context(Stream(number, first))
        for mode in ("starttls", "direct"):
            started = time.monotonic()
            login(server, proxy.ports[mode], mode).close()
            expect(time.monotonic() - started < 2, f"{server.name}: {mode} took {time.monotonic() - started:.1f} s")


@check("silent clients inside TLS do not hold up ejabberd's accept loop", needs=BOTH)
def silent_in_tls(scope):
    server = servers.ejabberd()
    proxy = front(scope, server)
    for _ in range(50):
        scope.enter_context(Stream(proxy.ports["direct"]).tls(server.host))
    started = time.monotonic()
    login(server, proxy.ports["direct"], "direct").close()
    expect(time.monotonic() - started < 2, f"a login took {time.monotonic() - started:.1f} s")


class Hello:
    """A TLS client whose first flight a check sends in pieces of its own."""

    def __init__(self, name, alpn):
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(alpn)
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=name)

    def first(self):
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return self._out.read()

    def finish(self, stream, data):
        """The rest of the handshake, then `data`; returns the first bytes of the answer."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._exchange(stream)
        self._tls.write(data)
        while True:
            try:
                return self._tls.read(100)
            except ssl.SSLWantReadError:
                self._exchange(stream)

    def _exchange(self, stream):
        stream.send(self._out.read())
        received = stream.socket.recv(65536)
        expect(received, "the connection ended in the handshake")
        self._in.write(received)


@check("a hello of 2 kB in one-byte pieces, or cut into two records, is understood on every port", needs=BOTH)
def long_hello(scope):
    server = servers.prosody()
    proxy = front(scope, server, kinds=("starttls", "direct", "auto"))
    alpn = ["xmpp-client"] + [f"x-{number:03}-{'y' * 240}" for number in range(8)]
    for kind, starttls in (("starttls", True), ("direct", False), ("auto", True), ("auto", False)):
        for pieces in ("bytes", "records"):
            with Stream(proxy.ports[kind]) as stream:
                if starttls:
                    stream.open(server.host)
                    stream.send("<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>")
                    stream.read("<proceed [^>]*/>")
                hello = Hello(server.host, alpn)
                first = hello.first()
                expect(len(first) > 2000, f"a hello of {len(first)} bytes")
                if pieces == "bytes":
                    for at in range(len(first)):
                        stream.send(first[at:at + 1])
                else:
                    body = first[5:]
                    for part in (body[:700], body[700:]):
                        stream.send(b"\x16\x03\x01" + struct.pack(">H", len(part)) + part)
                answer = hello.finish(stream, header(server.host).encode())
                expect(b"<?xml" in answer or b"<stream" in answer, f"{kind}, {pieces}: {answer}")


@check("a server that is down: the client is told inside TLS, in words of XMPP")
def server_down(scope):
    nobody = port()
    proxy = front(scope, nobody)
    with Stream(proxy.ports["direct"]) as stream:
        stream.tls("chat.test")
        answer = stream.open("chat.test") + stream.read_end()
        expect(re.search("remote-connection-failed|internal-server-error", answer), f"no word of it: {answer}")
        expect_in("</stream:stream>", answer, "the end")


@check("strangers who never log in are ended at each deadline, in words of XMPP", needs=BOTH)
def deadlines(scope):
    server = servers.prosody()
    limits = '\n[timeouts]\nfirst_byte = "1s"\nstarttls = "2s"\nhandshake = "1s"\nauthentication = "2s"\n'
    proxy = front(scope, server, more=limits)
    users = login(server, proxy.ports["starttls"]), login(server, proxy.ports["direct"], "direct")
    silent = Stream(proxy.ports["starttls"])
    opened = Stream(proxy.ports["starttls"])
    opened.open(server.host)
    proceeded = Stream(proxy.ports["starttls"])
    proceeded.open(server.host)
    proceeded.send("<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>")
    unhurried = Stream(proxy.ports["starttls"])
    unhurried.open(server.host)
    unhurried.starttls()
    unhurried.open(server.host)
    for name, stream, words in (
        ("silent", silent, ""), ("opened", opened, "connection-timeout"),
        ("asked for TLS", proceeded, "proceed"), ("not logged in", unhurried, "connection-timeout"),
    ):
        with stream:
            expect_in(words, stream.read_end(wait=6), name)
    for user in users:
        user.send("<iq type='get' id='p'><ping xmlns='urn:xmpp:ping'/></iq>")
        user.read("id='p'")
        user.close()


@check("an idle session outlives every deadline tenfold", needs=BOTH)
def idle(scope):
    limits = (
        '\n[timeouts]\nfirst_byte = "200ms"\nstarttls = "300ms"\nhandshake = "300ms"\nauthentication = "300ms"\n'
        'connect = "300ms"\nstall = "300ms"\nhalf_closed = "300ms"\n'
    )
    proxy = front(scope, *each_server(), more=limits)
    users = [login(server, proxy.ports[mode], mode) for server in each_server() for mode in ("starttls", "direct")]
    time.sleep(3)  # The silence itself is what is tested.
    for user in users:
        user.send("<iq type='get' id='p'><ping xmlns='urn:xmpp:ping'/></iq>")
        user.read("id=['\"]p['\"]")
        user.close()


@check("a failed login is logged by the server with the client's address", needs=BOTH)
def failed_login(scope):
    for server in each_server():
        proxy = front(scope, server)
        since = server.mark()
        with Stream(proxy.ports["starttls"], source=ELSEWHERE) as stream:
            stream.open(server.host)
            stream.starttls()
            stream.open(server.host)
            expect_in("<failure", stream.authenticate("alice", "wrong"), server.name)
            server.wait_log(since, rf"(?i)failed.*{re.escape(ELSEWHERE)}")


@check("white space after <starttls/> is nothing, one byte and then silence costs nothing", needs=BOTH)
def white_space(scope):
    server = servers.ejabberd()
    proxy = front(scope, server)
    with Stream(proxy.ports["starttls"]) as stream:
        stream.open(server.host)
        stream.send("<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/> \n")
        stream.read("<proceed [^>]*/>")
        stream.tls(server.host)
        stream.login("alice", PASSWORD, stream.open(server.host))
    for first, number in ((b"<", proxy.ports["starttls"]), (b"\x16", proxy.ports["direct"])):
        scope.enter_context(Stream(number, first))
    before = cpu_seconds(proxy.process.pid)
    time.sleep(1)  # The time in which nothing may be spent.
    spent = cpu_seconds(proxy.process.pid) - before
    expect(spent < 0.1, f"{spent:.2f} s of CPU in one second of silence")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@check("a client that does not read can still send, and what it is owed is held back at the server")
def slow_reader(scope):
    number = port()
    backend = scope.enter_context(socket.create_server(("127.0.0.1", number)))
    got, pushed = [0], [0]
    hello = header("chat.test").replace(" to=", " id='1' from=")
    features = (
        "<stream:features><mechanisms xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><mechanism>PLAIN</mechanism>"
        "</mechanisms></stream:features>"
    )
    stanza = b"<message from='a@chat.test'><body>" + b"x" * 1000 + b"</body></message>"

    def serve():
        connection, _ = backend.accept()
        text = b""
        while b"<auth" not in text:
            if text.endswith(b"streams'>"):
                connection.sendall((hello + features).encode())
            text += connection.recv(4096)
        connection.sendall(b"<success xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/>")
        while not text.endswith(b"streams'>"):
            text += connection.recv(4096)
        connection.sendall((hello + "<stream:features/>").encode())

        def push():
            try:
                while pushed[0] < 64 << 20:
                    connection.sendall(stanza)
                    pushed[0] += len(stanza)
            except OSError:
                pass

        threading.Thread(target=push, daemon=True).start()
        try:
            while data := connection.recv(65536):
                got[0] += len(data)
        except OSError:
            pass

    threading.Thread(target=serve, daemon=True).start()
    proxy = front(scope, number, proxy_protocol="off", more="\n[xmpp]\nprobe = false\n")
    before = resident(proxy.process.pid)
    stream = scope.enter_context(Stream(proxy.ports["direct"]).tls("chat.test"))
    stream.open("chat.test")
    stream.authenticate("alice", PASSWORD)
    stream.open("chat.test")

    def held_back():
        seen = pushed[0]
        time.sleep(0.5)
        return seen == pushed[0] > 0

    until(held_back, "a server that is held back")
    expect(pushed[0] < 32 << 20, f"{pushed[0]} bytes were taken from the server")
    grown = resident(proxy.process.pid) - before
    expect(grown < 1024, f"the proxy grew by {grown} kB")
    base = got[0]
    stream.send(b"<presence id='00000'/>" * 200)
    until(lambda: got[0] - base >= 200 * 22, "what the client sent, at the server")


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))
