"""What openssl's client may ask for: versions, suites, keys, names, tickets, key updates."""

import signal

from harness import CERTS, check, expect, expect_equal, metric, pair_flags, until
from sclient import Client

SUITES_13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
SUITES_12 = ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")


@check("every TLS 1.3 suite with ECDSA, RSA and Ed25519 certificates", needs=("openssl",))
def every_suite_of_13(scope):
    for cert, peer in (("ecdsa", "ECDSA"), ("rsa", "RSA-PSS"), ("ed25519", "Ed25519")):
        proxy, port, _ = scope.tls_echo(cert=cert)
        for suite in SUITES_13:
            client = Client(scope, port, "-tls1_3", "-ciphersuites", suite).echo()
            expect_equal(client.version, "TLSv1.3", f"{cert} {suite}: version")
            expect_equal(client.suite, suite, f"{cert}: suite")
            signature = client.fact(r"Peer signature type: (\S+)")
            expect_equal(signature.lower(), peer.lower(), f"{suite}: signature")
            expect_equal(client.close(), 0, f"{suite}: exit code of s_client")
        proxy.end()


@check("every TLS 1.2 suite with ECDSA, RSA and Ed25519 certificates", needs=("openssl",))
def every_suite_of_12(scope):
    for cert, kind in (("ecdsa", "ECDSA"), ("rsa", "RSA"), ("ed25519", "ECDSA")):
        proxy, port, _ = scope.tls_echo(cert=cert)
        for suite in SUITES_12:
            name = f"ECDHE-{kind}-{suite}"
            client = Client(scope, port, "-tls1_2", "-cipher", name).echo().echo()
            expect_equal(client.version, "TLSv1.2", f"{cert} {name}: version")
            expect_equal(client.suite, name, f"{cert}: suite")
            expect_equal(client.close(), 0, f"{name}: exit code of s_client")
        proxy.end()


@check("the certificate is verified for the names and addresses it covers", needs=("openssl",))
def names_are_verified(scope):
    _, port, _ = scope.tls_echo()
    trust = ("-CAfile", str(CERTS / "ecdsa.cert.pem"), "-verify_return_error")
    for name in ("localhost", "chat.test", "any.wild.test"):
        Client(scope, port, *trust, "-servername", name, "-verify_hostname", name).echo().close()
    Client(scope, port, *trust, "-noservername", "-verify_ip", "127.0.0.1").echo().close()


@check("SNI picks the certificate: exact, wildcard, case, default; strict refuses", needs=("openssl",))
def sni_picks(scope):
    more = (*pair_flags("chat.test"), *pair_flags("wild.test"))
    shown = {
        name: (CERTS / f"{name}.cert.pem").read_text().split("-----")[2].strip()
        for name in ("rsa", "chat.test", "wild.test")
    }
    names = {
        "chat.test": "chat.test",
        "CHAT.test": "chat.test",
        "a.wild.test": "wild.test",
        "deep.a.wild.test": "rsa",
        "unknown.test": "rsa",
    }
    # The default pair covers chat.test as well: the pair that names it first in the list wins, so
    # for this check the default is one that covers other names only.
    folder = scope.folder()
    code, text = scope.run(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2",
        "-subj", "/CN=default.test", "-addext", "subjectAltName=DNS:default.test",
    )
    expect_equal(code, 0, f"openssl req: {text}")
    shown["rsa"] = (folder / "cert.pem").read_text().split("-----")[2].strip()
    default = ("--cert", folder / "cert.pem", "--key", folder / "key.pem")

    proxy, port, _ = scope.tls_echo(*default, *more, cert=None)
    for asked, wanted in names.items():
        client = Client(scope, port, "-servername", asked).echo()
        expect(client.serial == shown[wanted], f"{asked}: not the certificate of {wanted}")
        client.close()
    client = Client(scope, port, "-noservername").echo()
    expect(client.serial == shown["rsa"], "no name: not the default certificate")
    client.close()
    proxy.end()

    _, port, _ = scope.tls_echo(*default, *more, "--sni-strict", cert=None)
    Client(scope, port, "-servername", "chat.test").echo().close()
    strict = scope.run(
        "openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-servername", "unknown.test"
    )
    expect("unrecognized name" in strict[1], f"strict: no unrecognized_name alert:\n{strict[1][-1500:]}")


@check("ALPN xmpp-client is accepted on xmpps, and none is needed", needs=("openssl",))
def alpn_is_accepted(scope):
    _, port, _ = scope.tls_echo(scheme="xmpps")
    for offered in ("xmpp-client", "h2,xmpp-client"):
        Client(scope, port, "-alpn", offered).process.wait_for("ALPN protocol: xmpp-client")
    Client(scope, port).process.wait_for("No ALPN negotiated(?s:.*)Verify return code")


@check("tickets resume sessions, TLS 1.3 and 1.2, whichever worker answers", needs=("openssl",))
def tickets_resume(scope):
    _, port, _ = scope.tls_echo("--workers", "2")
    folder = scope.folder()
    for version in ("-tls1_3", "-tls1_2"):
        kept = folder / f"session{version}"
        Client(scope, port, version, "-sess_out", kept).echo().close()
        expect(kept.exists(), f"{version}: s_client kept no session")
        for _ in range(4):
            again = Client(scope, port, version, "-sess_in", kept).echo()
            expect("\nReused, " in again.text, f"{version}: not resumed:\n{again.text[-800:]}")
            again.close()


@check("key updates by the client, asked back and not, keep the stream alive", needs=("openssl",))
def key_updates(scope):
    _, port, _ = scope.tls_echo()
    for suite in SUITES_13:
        client = Client(scope, port, "-tls1_3", "-ciphersuites", suite).echo()
        for letter in "kKKkkK":  # k: its own keys; K: and the server's too.
            seen = len(client.text)
            client.command(letter)
            client.process.wait_for("KEYUPDATE", after=seen)  # What it reads with the letter is lost.
            client.echo()
        expect_equal(client.close(), 0, "exit code of s_client")


@check("close_notify reaches the backend as FIN, and so does a bare FIN, counted", needs=("openssl",))
def ends_are_told_apart(scope):
    proxy, port, backend = scope.tls_echo()
    for version in ("-tls1_3", "-tls1_2"):
        before = metric(proxy, "trunc")
        number = len(backend.ends)
        Client(scope, port, version).echo().close()
        expect_equal(backend.end(number), "fin", f"{version}: close_notify at the backend")
        expect_equal(metric(proxy, "trunc"), before, f"{version}: truncations behind close_notify")
        killed = Client(scope, port, version).echo()
        killed.process.signal(signal.SIGKILL)  # The kernel ends it: FIN without close_notify.
        expect_equal(backend.end(number + 1), "fin", f"{version}: bare FIN at the backend")
        until(lambda: metric(proxy, "trunc") == before + 1, f"{version}: a counted truncation")


@check("--on-truncation abort shows the backend a reset, for a bare FIN only", needs=("openssl",))
def truncation_aborts(scope):
    _, port, backend = scope.tls_echo("--on-truncation", "abort")
    Client(scope, port).echo().close()
    expect_equal(backend.end(0), "fin", "close_notify at the backend")
    killed = Client(scope, port).echo()
    killed.process.signal(signal.SIGKILL)
    expect_equal(backend.end(1), "rst", "bare FIN at the backend")
