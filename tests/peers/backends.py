"""Other kinds of backend: TLS behind the proxy too, a Unix socket, none at all."""

import socket
import threading

from harness import CERTS, Echo, check, expect, expect_equal, listening, port, until
from sclient import Client


def s_server(scope, number, *flags):
    """openssl s_server that sends every line back reversed."""
    server = scope.start(
        "openssl", "s_server", "-accept", f"127.0.0.1:{number}", "-rev",
        "-cert", CERTS / "ecdsa.cert.pem", "-key", CERTS / "ecdsa.key.pem", *flags,
    )
    server.wait_for("ACCEPT")
    return server


def reversed_line(client):
    seen = len(client.text)
    client.process.send("stressed\n")
    client.process.wait_for("desserts", after=seen)


@check("tls:// to openssl s_server, TLS 1.3 and 1.2, certificate verified", needs=("openssl",))
def tls_backend(scope):
    trust = ("--backend-ca", CERTS / "ecdsa.cert.pem")
    for version in ("-tls1_3", "-tls1_2"):
        behind, front = port(), port()
        server = s_server(scope, behind, version)
        proxy = scope.vestibule(
            "--forward", f"tls://127.0.0.1:{front}=tls://localhost:{behind}", *trust
        )
        client = Client(scope, front)
        for _ in range(3):
            reversed_line(client)
        expect_equal(client.close(), 0, f"{version}: exit code of s_client")
        proxy.end()
        server.end()


@check("tls:// to a server that nobody vouches for is refused", needs=("openssl",))
def untrusted_backend(scope):
    behind, front = port(), port()
    s_server(scope, behind)
    proxy = scope.vestibule("--forward", f"tls://127.0.0.1:{front}=tls://localhost:{behind}")
    client = Client(scope, front)
    client.process.send("stressed\n")
    client.process.wait()
    expect("desserts" not in client.text, "an unverified backend was used")
    proxy.wait_for("(?i)certificate|issuer")


@check("unix: to a server on a Unix socket", needs=("openssl",))
def unix_backend(scope):
    path = scope.folder() / "backend.sock"
    server = scope.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(str(path))
    server.listen()

    def serve():
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(4096):
                connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    front = port()
    scope.vestibule("--forward", f"tls://127.0.0.1:{front}=unix:{path}")
    Client(scope, front).echo().close()
    thread.join(5)
    expect(not thread.is_alive(), "the Unix backend did not see the end")


@check("a backend that is down costs that connection alone, and is used once it is up", needs=("openssl",))
def backend_down(scope):
    behind, front = port(), port()
    scope.vestibule("--forward", f"tls://127.0.0.1:{front}=127.0.0.1:{behind}")
    client = Client(scope, front)
    client.process.wait()
    server = scope.enter_context(socket.create_server(("127.0.0.1", behind)))
    until(lambda: listening(behind), "the backend's port")
    server.accept()[0].close()
    Client(scope, front)
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"here now\n")


@check("two backends behind one listener both get connections", needs=("openssl",))
def balanced(scope):
    one, two = scope.enter_context(Echo()), scope.enter_context(Echo())
    front = port()
    listen = f"tls://127.0.0.1:{front}"
    scope.vestibule(
        "--forward", f"{listen}=127.0.0.1:{one.port}", "--forward", f"{listen}=127.0.0.1:{two.port}"
    )
    for _ in range(6):
        Client(scope, front).echo().close()
    until(lambda: len(one.ends) + len(two.ends) == 6, "six ended connections")
    expect(one.ends and two.ends, f"uneven: {len(one.ends)} and {len(two.ends)}")
