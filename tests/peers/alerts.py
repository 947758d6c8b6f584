"""What is refused, and that it is said in TLS's own words while the proxy lives on."""

import socket

from harness import check, expect, expect_equal, expect_in
from sclient import Client, refused

OLD = ("-cipher", "DEFAULT:@SECLEVEL=0")


def lives(scope, port):
    """The worker that refused somebody still serves the next."""
    Client(scope, port).echo().close()


@check("ALPN without a common protocol: no_application_protocol", needs=("openssl",))
def no_common_alpn(scope):
    _, port, _ = scope.tls_echo(scheme="xmpps")
    for version in ("-tls1_3", "-tls1_2"):
        expect_in("no application protocol", refused(scope, port, version, "-alpn", "h2"), version)
    Client(scope, port, "-alpn", "xmpp-client").process.wait_for("ALPN protocol: xmpp-client")


@check("TLS 1.1: protocol_version", needs=("openssl",))
def no_common_version(scope):
    _, port, _ = scope.tls_echo()
    expect_in("alert protocol version", refused(scope, port, "-tls1_1", *OLD), "TLS 1.1")
    lives(scope, port)


@check("--tls-min 1.3 against TLS 1.2: protocol_version", needs=("openssl",))
def tls_min(scope):
    _, port, _ = scope.tls_echo("--tls-min", "1.3")
    expect_in("alert protocol version", refused(scope, port, "-tls1_2"), "TLS 1.2")
    lives(scope, port)


@check("no common suite: handshake_failure", needs=("openssl",))
def no_common_suite(scope):
    _, port, _ = scope.tls_echo()
    text = refused(scope, port, "-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA")
    expect_in("alert handshake failure", text, "a CBC suite")
    lives(scope, port)


@check("renegotiation asked for by a TLS 1.2 client is refused", needs=("openssl",))
def renegotiation(scope):
    _, port, _ = scope.tls_echo()
    client = Client(scope, port, "-tls1_2").echo()
    seen = len(client.text)
    client.command("R")
    client.process.wait_for("RENEGOTIATING", after=seen)
    code = client.process.wait()
    expect(code != 0 or "error" in client.text[seen:], f"renegotiated:\n{client.text[seen:]}")
    expect("Session-ID" not in client.text[seen:], f"renegotiated:\n{client.text[seen:]}")
    lives(scope, port)


@check("plain HTTP on a TLS port gets a TLS alert, and the debug log says what it was")
def plain_http(scope):
    proxy, port, _ = scope.tls_echo("--log-level", "debug")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: chat.test\r\n\r\n")
        answer = b""
        while data := plain.recv(100):
            answer += data
    expect(answer[:2] == b"\x15\x03" and len(answer) == 7, f"no TLS alert but {answer!r}")
    expect_equal(answer[5], 2, "level of the alert (fatal)")
    proxy.wait_for("(?i)http")
    lives(scope, port)


@check("a stranger's first bytes, and none at all, harm nobody")
def garbage(scope):
    _, port, _ = scope.tls_echo("--handshake-timeout", "1s")
    silent = socket.create_connection(("127.0.0.1", port), timeout=8)
    for first in (b"\x00" * 600, b"\xff" * 5, b"<stream:stream to='chat.test'>", b"\x16\x03\x01\xff\xff"):
        with socket.create_connection(("127.0.0.1", port), timeout=8) as stranger:
            stranger.sendall(first)
            try:
                while stranger.recv(100):
                    pass
            except ConnectionResetError:
                pass
    with silent:  # Ends at the handshake deadline, by whichever end of TCP.
        try:
            while silent.recv(100):
                pass
        except ConnectionResetError:
            pass
    lives(scope, port)
