"""curl, h2load, nghttp and wrk as clients, nginx and Node as servers: HTTP through an https listener."""

import contextlib
import hashlib
import json
import os
import socket
import threading

from gates import HERE, HOST, Gate, Two, code_of, connect, curl, gate, nginx, node
from harness import CERTS, check, expect, expect_equal, expect_in, listening, port, until

# HTTP/1.0 without ALPN, as its clients are: curl alone names it there.
VERSIONS = (("--http1.1",), ("--http2",), ("--http1.0",))
BIG = os.urandom(1 << 20) * 5


def sha(data):
    return hashlib.sha256(data).hexdigest()


SERVER = """
server {{
    listen 127.0.0.1:%d;
    root {folder}/www;
    location = /hello {{ return 200 "hello from nginx\\n"; }}
}}
"""


def static(scope):
    """nginx with a 5 MiB file; returns its port."""
    number = port()
    nginx(scope, SERVER % number, [("big", BIG)])
    until(lambda: listening(number), "nginx")
    return number


@check("curl gets an answer by HTTP/1.0, 1.1 and 2 to each method", needs=("curl", "nginx", "node"))
def methods(scope):
    web, app = gate(scope, static(scope)), gate(scope, node(scope))
    for version in VERSIONS:
        expect_in("hello from nginx", curl(scope, web, *version, path="/hello"), f"GET to nginx, {version}")
        head = curl(scope, web, *version, "-I", path="/big")
        expect_in(f"content-length: {len(BIG)}", head.lower(), f"HEAD to nginx, {version}")
        for method in ("GET", "POST", "DELETE", "OPTIONS", "PATCH"):
            body = ("--data", "message=hello") if method in ("POST", "PATCH") else ()
            told = json.loads(curl(scope, app, *version, "-X", method, *body, path="/a?b=c"))
            expect_equal(
                (told["method"], told["url"], told["size"]), (method, "/a?b=c", 13 if body else 0),
                f"what Node saw of {method}, {version}",
            )
            expect_equal(told["headers"]["host"], f"{HOST}:{app.port}", f"host of {method}, {version}")
            expect_equal(told["headers"]["x-forwarded-proto"], "https", f"scheme of {method}, {version}")
    for version, seen in ((("--http2",), "200 2"), (("--http1.1",), "200 1.1")):
        expect_equal(code_of(scope, web, *version, path="/hello"), seen, f"status and version, {version}")


@check("5 MiB arrive unchanged, up and down, whole and in part", needs=("curl", "nginx", "node"))
def large(scope):
    web, app = gate(scope, static(scope)), gate(scope, node(scope))
    folder = scope.folder()
    (folder / "big").write_bytes(BIG)
    for version in VERSIONS:
        curl(scope, web, *version, "-o", folder / "got", path="/big")
        expect_equal(sha((folder / "got").read_bytes()), sha(BIG), f"checksum of what came down, {version}")
        curl(scope, web, *version, "-r", "1000000-1999999", "-o", folder / "part", path="/big")
        expect_equal(sha((folder / "part").read_bytes()), sha(BIG[1000000:2000000]), f"checksum of a range, {version}")
        told = json.loads(curl(scope, app, *version, "-T", folder / "big", path="/put"))
        expect_equal((told["method"], told["sha256"]), ("PUT", sha(BIG)), f"what Node got by PUT, {version}")
    # No length: chunked in HTTP/1.1, plain DATA in HTTP/2.
    for version in VERSIONS[:2]:
        with open(folder / "big", "rb") as pipe:
            told = json.loads(curl_piped(scope, app, pipe, *version))
        expect_equal(told["sha256"], sha(BIG), f"checksum of a body without length, {version}")


def curl_piped(scope, gate, pipe, version):
    code, text = scope.run(
        "curl", "-sS", "--max-time", "20", version, "--cacert", CERTS / "ecdsa.cert.pem", "-X", "POST", "-T", "-",
        f"{gate.url}/", stdin=pipe,
    )
    expect_equal(code, 0, f"exit code of curl, which said {text[-300:]!r}")
    return text


@check("an upload waits for 100 Continue and gets it", needs=("curl", "node"))
def continues(scope):
    app = gate(scope, node(scope))
    said = curl(
        scope, app, "--http1.1", "-v", "-H", "Expect: 100-continue", "--expect100-timeout", "10",
        "--data", "x" * 2000, path="/",
    )
    expect_in("HTTP/1.1 100 Continue", said, "interim answer")
    expect_in('"size":2000', said, "answer")


@check("the first server-sent event comes before the second is sent", needs=("curl", "node"))
def events(scope):
    app = gate(scope, node(scope))
    for version in ("--http1.1", "--http2"):
        stream = scope.start(
            "curl", "-sSN", version, "--cacert", CERTS / "ecdsa.cert.pem", "--max-time", "20", f"{app.url}/events"
        )
        stream.wait_for("data: first")
        expect("second" not in stream.text, "the second event came before it was sent")
        curl(scope, app, path="/go")
        stream.wait_for("data: second")
        expect_equal(stream.wait(), 0, f"exit code of curl, {version}")


@check("each part of an upload is answered before the next is sent", needs=("node",))
def both_ways(scope):
    # Not by curl, which may hold back what it has read from a pipe while it speaks TLS.
    app = gate(scope, node(scope))
    tls, came = connect(scope, app), b""
    tls.sendall(f"POST /echo HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    two = Two(scope, app)
    stream = two.open("/echo", end=False, method="POST")
    for part in (b"first", b"second", b"third"):
        tls.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        while part not in came:
            more = tls.recv(65536)
            expect(more, f"the end after {came!r}")
            came += more
        two.send(stream, part)
        two.until(lambda: part in two.streams[stream][1], f"the echo of {part!r}")


@check("a compressed answer arrives as its server made it", needs=("curl", "nginx"))
def compressed(scope):
    number = port()
    nginx(
        scope, f"server {{{{ listen 127.0.0.1:{number}; root {{folder}}/www; gzip on; gzip_types *; }}}}",
        [("text", b"so many words " * 5000)],
    )
    until(lambda: listening(number), "nginx")
    web, folder = gate(scope, number), scope.folder()

    def fetched(name, *words):
        code, text = scope.run(
            "curl", "-sS", "-H", "Accept-Encoding: gzip", "-D", folder / "head", "-o", folder / name, *words
        )
        expect_equal(code, 0, f"exit code of curl, which said {text!r}")
        expect_in("content-encoding: gzip", (folder / "head").read_text().lower(), f"head of the answer, {name}")
        return (folder / name).read_bytes()

    whole = fetched("direct", f"http://127.0.0.1:{number}/text")
    for version in VERSIONS[:2]:
        through = fetched("through", *version, "--cacert", CERTS / "ecdsa.cert.pem", f"{web.url}/text")
        expect(through == whole, f"other bytes than the server's own, {version}")


@check("trailers come through", needs=("curl", "node"))
def trailers(scope):
    app = gate(scope, node(scope))
    for version in ("--http1.1", "--http2"):
        text = curl(scope, app, version, "-H", "TE: trailers", "-D", "-", path="/trailers")
        expect_in("x-sum: right", text.lower(), f"answer, {version}")
    with connect(scope, app) as tls:
        tls.sendall(
            f"POST / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nTrailer: x-up\r\n"
            "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-up: well\r\n\r\n".encode()
        )
        answer = b""
        while data := tls.recv(65536):
            answer += data
    expect_in('"x-up":"well"', answer.decode(), "what Node got")


@check("h2load, nghttp and wrk see no error and no answer but 200", needs=("h2load", "nghttp", "wrk", "nginx"))
def load(scope):
    web = gate(scope, static(scope))
    for flags, count in ((("-m", "10"), 4000), (("--h1",), 4000)):
        code, text = scope.run("h2load", *flags, "-n", count, "-c", "20", f"{web.url}/hello")
        expect_equal(code, 0, f"exit code of h2load: {text[-500:]}")
        expect_in(f"{count} succeeded, 0 failed, 0 errored, 0 timeout", text, f"h2load {flags}")
        expect_in(f"status codes: {count} 2xx, 0 3xx, 0 4xx, 0 5xx", text, f"h2load {flags}")
    code, text = scope.run("nghttp", "-ns", "-m", "20", f"{web.url}/hello")
    expect_equal(code, 0, f"exit code of nghttp: {text[-500:]}")
    expect_equal(text.count(" 200 "), 20, f"answers that nghttp saw in {text}")
    code, text = scope.run("wrk", "-t1", "-c20", "-d2s", f"{web.url}/hello")
    expect_equal(code, 0, f"exit code of wrk: {text[-500:]}")
    expect("Socket errors" not in text and "Non-2xx" not in text, f"wrk:\n{text}")


@check("plain HTTP is sent to https, a POST with its method", needs=("curl",))
def redirected(scope):
    web = gate(scope, port(), plain=True)
    for method, seen in (("GET", "301"), ("POST", "308")):
        code, text = scope.run(
            "curl", "-sS", "-X", method, "-o", "/dev/null", "-w", "%{http_code} %{redirect_url}",
            "-H", "Host: localhost", f"http://127.0.0.1:{web.plain}/a/b?c=d",
        )
        expect_equal((code, text), (0, f"{seen} {web.url}/a/b?c=d"), f"redirect of {method}")


@check("a host that the handshake did not ask for gets 421, a path without a route 404", needs=("curl", "node"))
def misdirected(scope):
    behind = node(scope)
    web = gate(scope, behind)
    for version in ("--http1.1", "--http2"):
        expect_equal(
            code_of(scope, web, version, "-H", "Host: stranger.example")[:3], "421", f"host of nobody, {version}"
        )
        expect_equal(code_of(scope, web, version, "-H", "Host: other.test")[:3], "200", f"host of ours, {version}")
    number = port()
    settings = scope.folder() / "auto.toml"
    settings.write_text(
        f'[[listener]]\nlisten = "auto://127.0.0.1:{number}"\nupstream = "chat"\n'
        f'[[upstream]]\nname = "chat"\nbackend = [{{ address = "127.0.0.1:{port()}" }}]\n'
        f'[[upstream]]\nname = "app"\nbackend = [{{ address = "127.0.0.1:{behind}" }}]\n'
        '[[route]]\nprotocol = "http"\npaths = ["/app"]\nupstream = "app"\n[xmpp]\nprobe = false\n'
    )
    scope.vestibule("--config", settings)
    both = Gate(None, number, None)
    for version in ("--http1.1", "--http2"):
        expect_equal(code_of(scope, both, version, path="/app/x")[:3], "200", f"a path with a route, {version}")
        text = curl(scope, both, version, "-D", "-", "-H", "Accept: application/json", path="/else")
        head, _, body = text.replace("\r", "").partition("\n\n")
        expect_in("application/json", head, f"type of the refusal, {version}")
        told = json.loads(body)
        expect_equal((told["status"], told["reason"]), (404, "no_route"), f"refusal, {version}")


@check("a server that is down or does not answer: 502 and 504, then 200 once it is up", needs=("curl", "node"))
def down(scope):
    number = port()
    web = gate(scope, number, more='[timeouts]\nanswer = "1s"\n')
    for version in ("--http1.1", "--http2"):
        told = json.loads(curl(scope, web, version, "-H", "Accept: application/json"))
        expect_equal((told["status"], told["reason"]), (502, "no_backend"), f"refusal, {version}")
    server = scope.start("node", HERE / "behind.mjs", number, "late")
    server.wait_for("listening")
    for version in ("--http1.1", "--http2"):
        expect_equal(code_of(scope, web, version)[:3], "200", f"once it is up, {version}")
        expect_equal(code_of(scope, web, version, path="/never")[:3], "504", f"a silent server, {version}")
        expect_equal(code_of(scope, web, version)[:3], "200", f"after that, {version}")


@check("nginx as HTTP/2 server in TLS and in plain: the same answers", needs=("curl", "nginx"))
def two_behind(scope):
    secure, plain = port(), port()
    pair = f"ssl_certificate {CERTS}/ecdsa.cert.pem; ssl_certificate_key {CERTS}/ecdsa.key.pem;"
    say = (
        'root {folder}/www; location = /hello {{ return 200 "by $server_protocol for $host\\n"; }}'
        " location = /kept {{ return 200 \"kept $request_method $content_length\\n\"; }}"
    )
    nginx(
        scope,
        f"server {{{{ listen 127.0.0.1:{secure} ssl http2; {pair} {say} }}}}\n"
        f"server {{{{ listen 127.0.0.1:{plain} http2; {say} }}}}",
        [("big", BIG)],
    )
    until(lambda: listening(secure) and listening(plain), "nginx")
    folder = scope.folder()
    for address in (f"https://localhost:{secure}", f"http://127.0.0.1:{plain}"):
        web = gate(scope, address, upstream=f'http2 = true\nca = ["{CERTS}/ecdsa.cert.pem"]')
        for version in ("--http1.1", "--http2"):
            expect_equal(
                curl(scope, web, version, path="/hello"), "by HTTP/2.0 for localhost\n", f"{address}, {version}"
            )
            curl(scope, web, version, "-o", folder / "got", path="/big")
            expect_equal(sha((folder / "got").read_bytes()), sha(BIG), f"checksum, {address}, {version}")
            many = curl(scope, web, version, "-Z", "--parallel-immediate", path="/hello?[1-100]")
            expect_equal(many.count("by HTTP/2.0"), 100, f"answers at once, {address}, {version}")


@check("a client stays with its server, by cookie and by address", needs=("curl", "node"))
def sticky(scope):
    one, two = node(scope, "one"), node(scope, "two")
    web = gate(scope, one, two, upstream='sticky = "cookie"')
    met = set()
    for _ in range(8):
        jar = scope.folder() / "jar"
        first = json.loads(curl(scope, web, "-c", jar, "-b", jar))["name"]
        met.add(first)
        for version in ("--http1.1", "--http2") * 3:
            again = json.loads(curl(scope, web, version, "-b", jar))
            expect_equal(again["name"], first, f"server of one with a cookie, {version}")
        if len(met) == 2:
            break
    expect_equal(met, {"one", "two"}, "servers that newcomers were given")
    web = gate(scope, one, two, upstream='sticky = "address"')
    names = {json.loads(curl(scope, web, version))["name"] for version in ("--http1.1", "--http2") * 4}
    expect_equal(len(names), 1, "servers of one address")


@check("a refusal in the middle of an upload is read by who uploads", needs=("curl", "nginx"))
def refused_upload(scope):
    web = gate(scope, static(scope))
    large = scope.folder() / "large"
    large.write_bytes(bytes(32 << 20))  # nginx takes 16 MiB.
    for version in ("--http1.1", "--http2"):
        for expects in ((), ("-H", "Expect:")):
            seen = curl(scope, web, version, *expects, "-T", large, "-o", "/dev/null", "-w", "%{http_code}")
            expect_equal(seen, "413", f"status, {version} {expects}")


@check("an answer that its server cuts short is an error at the client", needs=("curl",))
def cut_short(scope):
    for head in ("Content-Length: 100\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n5\r\n"):
        server = scope.enter_context(socket.create_server(("127.0.0.1", port())))
        scope.callback(server.shutdown, socket.SHUT_RDWR)
        threading.Thread(target=cut, args=(server, head), daemon=True).start()
        web = gate(scope, server.getsockname()[1])
        for version, wanted in (("--http1.1", 18), ("--http2", 92)):
            code, text = scope.run(
                "curl", "-sSN", version, "--max-time", "10", "--cacert", CERTS / "ecdsa.cert.pem", f"{web.url}/"
            )
            expect_equal(code, wanted, f"exit code of curl, {version}, which said {text!r}")
            expect_in("short", text, "what came before the cut")


def cut(server, head):
    """Answers each request with the beginning of an answer, and closes."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(f"HTTP/1.1 200 OK\r\n{head}short".encode())
