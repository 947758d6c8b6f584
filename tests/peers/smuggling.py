"""Requests that two programs could read differently, sent by raw sockets: what does the server get to see?

The server is our own, since it has to tell. It reads what comes as a forgiving one would: a request that anything
hides in another's body or head shows in its list.
"""

import re
import socket
import threading

from gates import HOST, Two, connect, gate
from harness import check, expect, expect_equal, expect_in, port

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Teller:
    """A server that notes all requests that it can see, `heads` and `bodies`, in order of their ends."""

    def __init__(self, answers=()):
        self.port = port()
        self.heads, self.bodies = [], []
        self.connections = 0
        self.answers = dict(answers)  # path: whole answer
        self._socket = socket.create_server(("127.0.0.1", self.port), backlog=32)
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection.makefile("rwb"), connection), daemon=True).start()

    def _serve(self, file, connection):
        with connection, file:
            try:
                while head := self._head(file):
                    self._answer(head, self._body(head, file), file)
            except (OSError, ValueError):
                return

    @staticmethod
    def _head(file):
        lines = []
        while line := file.readline():
            if not line.strip():
                if lines:
                    return b"".join(lines)
                continue
            lines.append(line)
        return b""

    @staticmethod
    def _body(head, file):
        if re.search(rb"(?im)^transfer-encoding\s*:.*chunked", head):
            body = b""
            while size := int(file.readline().split(b";")[0], 16):
                body += file.read(size)
                file.readline()
            while file.readline().strip():
                pass
            return body
        length = re.search(rb"(?im)^content-length\s*:\s*(\d+)", head)
        size = int(length.group(1)) if length else 0
        body = file.read(size)
        if len(body) < size:
            raise ValueError("cut short")
        return body

    def _answer(self, head, body, file):
        self.heads.append(head)
        self.bodies.append(body)
        path = head.split()[1].decode()
        said = path.encode()
        file.write(self.answers.get(path) or b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said))
        file.flush()

    def forget(self):
        self.heads.clear()
        self.bodies.clear()

    @property
    def paths(self):
        return [head.split()[1].decode() for head in self.heads]


def exchange(tls, data):
    """Sends `data` and reads until the other side ends, or is silent; returns the statuses and all bytes."""
    tls.sendall(data)
    tls.settimeout(1)
    got = b""
    try:
        while part := tls.recv(65536):
            got += part
    except (TimeoutError, ConnectionError):
        pass
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3}) ", got)], got


def post(*fields, body=b"", first="POST /seen HTTP/1.1", host=True):
    lines = [first, *([f"Host: {HOST}"] if host else ()), *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


HIDDEN_LENGTH = f"Content-Length: {len(HIDDEN) + 5}"
REFUSED = (
    ("a length and chunks", 400, post(HIDDEN_LENGTH, "Transfer-Encoding: chunked", body=b"0\r\n\r\n" + HIDDEN)),
    ("chunks and a length", 400, post("Transfer-Encoding: chunked", "Content-Length: 4", body=(
        b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
    ))),
    ("two lengths", 400, post("Content-Length: 0", f"Content-Length: {len(HIDDEN)}", body=HIDDEN)),
    ("a list of lengths", 400, post(f"Content-Length: 0, {len(HIDDEN)}", body=HIDDEN)),
    ("a length with a sign", 400, post(f"Content-Length: +{len(HIDDEN)}", body=HIDDEN)),
    ("an encoding that only looks like chunked", 501, post("Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + HIDDEN)),
    ("a blank before the colon", 400, post("Transfer-Encoding : chunked", body=b"0\r\n\r\n" + HIDDEN)),
    ("a folded line", 400, post("X-A: b", " Transfer-Encoding: chunked", body=b"0\r\n\r\n" + HIDDEN)),
    ("LF alone", 400, post(f"X-A: b\nContent-Length: {len(HIDDEN)}", body=HIDDEN)),
    ("CR alone", 400, post(f"X-A: b\rContent-Length: {len(HIDDEN)}", body=HIDDEN)),
    ("NUL", 400, post("X-A: b\0", "Content-Length: 0")),
    ("chunks in HTTP/1.0", 400, post(
        "Transfer-Encoding: chunked", body=b"0\r\n\r\n" + HIDDEN, first="POST /seen HTTP/1.0"
    )),
    ("a body with a wish to upgrade", 400, post(
        "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: YWJjZGVmZ2hpamtsbW5vcA==", f"Content-Length: {len(HIDDEN)}",
        body=HIDDEN, first="GET /seen HTTP/1.1",
    )),
    ("two hosts", 400, post("Host: other.test", first="GET /seen HTTP/1.1")),
    ("a target of another host", 400, post(first="GET https://other.test/seen HTTP/1.1")),
    ("an underscore for a hyphen", 400, post("Content_Length: 5", "Transfer_Encoding: chunked")),
)
BROKEN_CHUNKS = (
    ("a sign before a chunk's size", b"+5\r\nhello\r\n0\r\n\r\n"),
    ("hexadecimal with 0x", b"0x5\r\nhello\r\n0\r\n\r\n"),
    ("LF alone behind a chunk's size", b"5\nhello\r\n0\r\n\r\n"),
    ("a chunk that is longer than its size", b"2\r\nhello\r\n0\r\n\r\n"),
    ("LF within a chunk's extension", b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
    ("a size of 17 digits", b"00000000000000005\r\nhello\r\n0\r\n\r\n"),
)


def cases(table):
    def run(scope):
        teller = scope.enter_context(Teller())
        web = gate(scope, teller.port)
        for what, status, data in table:
            before = len(teller.heads)
            with connect(scope, web) as tls:
                statuses, got = exchange(tls, data)
            expect_equal(statuses, [status], f"{what}: answers, in {got!r}")
            expect_equal(teller.paths[before:], [], f"{what}: what the server saw")
        with connect(scope, web) as tls:  # An innocent one behind them all gets its own answer.
            statuses, got = exchange(tls, post("Connection: close", first="GET /innocent HTTP/1.1"))
        expect(statuses == [200] and got.endswith(b"/innocent"), f"an innocent request got {got!r}")
        expect_equal(teller.paths, ["/innocent"], "what the server saw")

    return run


check("heads that can be read in two ways are refused, and no server sees them")(cases(REFUSED))
check("broken chunks are refused, and no server sees a whole request")(cases([
    (what, 400, post("Transfer-Encoding: chunked", body=body + HIDDEN)) for what, body in BROKEN_CHUNKS
]))


@check("pipelined requests, and one that is another's body, are as many as they should be")
def counted(scope):
    teller = scope.enter_context(Teller())
    web = gate(scope, teller.port)
    with connect(scope, web) as tls:
        statuses, got = exchange(
            tls,
            post(first="GET /one HTTP/1.1")
            + post(f"Content-Length: {len(HIDDEN)}", body=HIDDEN, first="GET /two HTTP/1.1")
            + post("Transfer-Encoding: chunked", body=b"%X;a=b\r\n%s\r\n0\r\nx-t: u\r\n\r\n" % (len(HIDDEN), HIDDEN))
            + post("Connection: close", first="GET /three HTTP/1.1"),
        )
    expect_equal(statuses, [200] * 4, f"answers, in {got!r}")
    expect_equal(teller.paths, ["/one", "/two", "/seen", "/three"], "requests at the server")
    expect_equal(teller.bodies, [b"", HIDDEN, HIDDEN, b""], "bodies at the server")
    places = [got.find(part) for part in (b"\r\n\r\n/one", b"\r\n\r\n/two", b"\r\n\r\n/seen", b"\r\n\r\n/three")]
    expect(places == sorted(places) and places[0] > 0, f"answers in another order: {got!r}")


@check("what Connection names is taken out, but neither length nor host nor what we say of the client")
def named(scope):
    teller = scope.enter_context(Teller())
    web = gate(scope, teller.port)
    for name in ("Content-Length", "Transfer-Encoding", "Host", "X-Forwarded-For", "X-Forwarded-Proto"):
        before = len(teller.heads)
        with connect(scope, web) as tls:
            fields = (f"Connection: close, {name}, X-Own", "X-Own: 1", f"Content-Length: {len(HIDDEN)}")
            statuses, got = exchange(tls, post(*fields, body=HIDDEN))
        seen = teller.heads[before:]
        if statuses == [400]:
            expect_equal(seen, [], f"{name}: what the server saw of a refused one")
            continue
        expect_equal((statuses, len(seen)), ([200], 1), f"{name}: answers and requests, in {got!r}")
        expect_equal(teller.bodies[before:], [HIDDEN], f"{name}: body at the server")
        head = seen[0].decode().lower()
        expect("x-own" not in head, f"{name}: X-Own went on:\n{head}")
        for part in ("x-forwarded-for: 127.0.0.1", "x-forwarded-proto: https", "host: localhost"):
            expect_in(part, head, f"{name}: head at the server")


@check("HTTP/2 that HTTP/1.1 would read otherwise reaches no server")
def from_two(scope):
    teller = scope.enter_context(Teller())
    web = gate(scope, teller.port)
    cases = (
        ("chunked", [("transfer-encoding", "chunked")], b"0\r\n\r\n" + HIDDEN),
        ("a length of 0 before a body", [("content-length", "0")], HIDDEN),
        ("a length beyond the body", [("content-length", "500")], HIDDEN),
        ("line ends in a value", [("x-a", "b\r\nTransfer-Encoding: chunked")], b"0\r\n\r\n" + HIDDEN),
        ("line ends in a name", [("x-a: b\r\nx-c", "d")], b""),
        ("Connection", [("connection", "close")], b""),
        ("a second host", [("host", "other.test")], b""),
    )
    for what, more, body in cases:
        two = Two(scope, web)
        two.h2.config.validate_outbound_headers = two.h2.config.normalize_outbound_headers = False
        number = two.open("/seen", end=False, method="POST", more=more)
        two.h2._data_to_send += frame(number, body)  # The library itself would refuse.
        two.flush()
        while not two.streams[number][2] and two.read():
            pass
        status = two.streams[number][0]
        if what == "a length of 0 before a body" and status == 200:
            # The request was whole, and was answered before its body came to light: that is never passed on.
            expect_equal((teller.paths, teller.bodies), (["/seen"], [b""]), f"{what}: what the server saw")
            teller.forget()
            continue
        expect(status is None or 400 <= status < 500, f"{what}: answer {status}")
        expect("/hidden" not in teller.paths and "/seen" not in teller.paths, f"{what}: the server saw {teller.paths}")
    for path in ("/a HTTP/1.1\r\nX-B: c", "/a b", "no-slash", ""):
        two = Two(scope, web)
        two.h2.config.validate_outbound_headers = two.h2.config.normalize_outbound_headers = False
        number = two.open(path)
        while not two.streams[number][2] and two.read():
            pass
        status = two.streams[number][0]
        expect(status is None or 400 <= status < 500, f"path {path!r}: answer {status}")
    expect_equal(teller.paths, [], "what the server saw")
    two = Two(scope, web)  # The same way, without a fault.
    number = two.open("/good", end=False, method="POST", more=[("content-length", str(len(HIDDEN)))])
    two.h2._data_to_send += frame(number, HIDDEN)
    two.flush()
    two.until(lambda: two.streams[number][2], "an answer")
    expect_equal((two.streams[number][0], teller.paths, teller.bodies), (200, ["/good"], [HIDDEN]), "a good one")


def frame(number, body):
    """A DATA frame that ends its stream."""
    return len(body).to_bytes(3, "big") + b"\0\1" + number.to_bytes(4, "big") + body


@check("answers that can be read in two ways are 502, and what is behind an answer reaches nobody")
def answers(scope):
    stray = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstray!"
    teller = scope.enter_context(Teller({
        "/lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\nhello",
        "/both": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "/unasked": b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "/more": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello" + stray,
        "/none": b"HTTP/1.1 204 No Content\r\n\r\n" + stray,
    }))
    web = gate(scope, teller.port)
    for path in ("/lengths", "/both", "/unasked"):
        with connect(scope, web) as tls:
            statuses, got = exchange(tls, post("Connection: close", first=f"GET {path} HTTP/1.1"))
        expect_equal(statuses, [502], f"{path}: answers, in {got!r}")
    for path, status in (("/more", 200), ("/none", 204)):
        with connect(scope, web) as tls:
            first = post(first=f"GET {path} HTTP/1.1")
            statuses, got = exchange(tls, first + post("Connection: close", first="GET /own HTTP/1.1"))
        expect_equal(statuses, [status, 200], f"{path}: answers, in {got!r}")
        expect(b"stray" not in got and got.endswith(b"/own"), f"{path}: {got!r}")
        two = Two(scope, web)
        expect_equal(two.get(path)[0], status, f"{path}: status, HTTP/2")
        expect_equal(two.get("/own"), (200, b"/own"), f"behind {path}, HTTP/2")
