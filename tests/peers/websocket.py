"""WebSockets through an https listener: Python's websockets and Node's ws on both sides, h2 for those over HTTP/2."""

import contextlib
import os
import random
import socket
import struct
import threading

import websockets.exceptions
import websockets.frames
import websockets.sync.client
import websockets.sync.server
from gates import HERE, HOST, NODE, Two, connect, context, gate, node, packages
from harness import CERTS, WAIT, check, expect, expect_equal, expect_in, port

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def echo(connection):
    with contextlib.suppress(websockets.exceptions.ConnectionClosed):
        for message in connection:
            connection.send(message)


def python_server(scope):
    """An echo server of Python's websockets that knows the subprotocol xmpp; returns its port."""
    number = port()
    server = websockets.sync.server.serve(
        echo, "127.0.0.1", number, subprotocols=["xmpp"], max_size=1 << 23, ping_interval=None
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scope.callback(server.shutdown)
    return number


def ask(number, *headers, path="/"):
    return "\r\n".join((
        f"GET {path} HTTP/1.1", f"Host: {HOST}:{number}", "Connection: keep-alive, Upgrade", "Upgrade: websocket",
        "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {KEY}", *headers, "", "",
    )).encode()


def head(connection):
    """Reads the head of an answer; returns its lines and what came behind it."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        expect(part, f"the end within a head: {data!r}")
        data += part
    lines, _, rest = data.partition(b"\r\n\r\n")
    return lines.decode().split("\r\n"), rest


@check("Python's websockets on both sides: 1 MiB, fragments, compression, subprotocol", needs=())
def python(scope):
    web = gate(scope, python_server(scope))
    for compression in (None, "deflate"):
        with websockets.sync.client.connect(
            f"wss://{HOST}:{web.port}/chat", ssl=context("http/1.1"), subprotocols=["xmpp"], compression=compression,
            max_size=1 << 23,
        ) as chat:
            expect_equal(chat.subprotocol, "xmpp", "subprotocol")
            expect_equal(len(chat.protocol.extensions), 1 if compression else 0, "extensions")
            large, parts = os.urandom(1 << 20), [os.urandom(1000) for _ in range(50)]
            for message, whole in (("hello", "hello"), (large, large), (parts, b"".join(parts))):
                chat.send(message)
                expect(chat.recv(10) == whole, "other bytes came back")
            expect(chat.ping().wait(10), "no pong")


@check("Node's ws on both sides, and with Python's server: the same", needs=("node",))
def javascript(scope):
    packages("ws")
    for number in (node(scope), python_server(scope)):
        web = gate(scope, number)
        code, text = scope.run(
            "node", HERE / "sockets.mjs", f"wss://{HOST}:{web.port}/chat", CERTS / "ecdsa.cert.pem", cwd=NODE
        )
        expect_equal(code, 0, f"exit code of ws, which said {text[-500:]!r}")
        expect_equal(text.count("echoed: fragmented 50000"), 2, f"echoes in {text}")
        expect_equal(text.count("closed: 4321 enough"), 2, f"closes in {text}")
        expect_in('"permessage-deflate', text, "extensions")


@check("the 101 is the server's own, header by header", needs=("node",))
def same(scope):
    packages("ws")
    for number in (node(scope), python_server(scope)):
        web = gate(scope, number)
        asked = ("Sec-WebSocket-Protocol: other, xmpp", "Sec-WebSocket-Extensions: permessage-deflate", "Origin: null")
        answers = []
        with connect(scope, web) as tls:
            tls.sendall(ask(web.port, *asked))
            answers.append(head(tls)[0])
        with socket.create_connection(("127.0.0.1", number), 10) as plain:
            plain.sendall(ask(number, *asked))
            answers.append(head(plain)[0])
        hop = ("date:", "connection:", "upgrade:", "keep-alive:")
        ours, theirs = (
            [line.lower() for line in lines[1:] if not line.lower().startswith(hop)] for lines in answers
        )
        expect_equal(sorted(ours), sorted(theirs), "headers of the 101")
        expect_in("101 Switching Protocols", answers[0][0], "status line")
        hops = {line.lower() for line in answers[0]}
        expect({"connection: upgrade", "upgrade: websocket"} <= hops, f"hop-by-hop headers in {answers[0]}")


@check("frames that come with the request, and a refusal, reach who they are for", needs=("node",))
def early(scope):
    packages("ws")
    web = gate(scope, node(scope))
    with connect(scope, web) as tls:
        tls.sendall(ask(web.port) + frame(b"early"))
        lines, rest = head(tls)
        expect_in("101", lines[0], "status line")
        while len(rest) < 7:
            rest += tls.recv(100)
        expect_equal(rest, b"\x81\x05early", "the echo")
    with connect(scope, web) as tls:
        tls.sendall(ask(web.port, "Sec-WebSocket-Extensions: permessage-deflate;;"))
        lines, _ = head(tls)
        expect_in("HTTP/1.1 400", lines[0], "the refusal of ws")


def raw(first, data=b"", size=None, mask=True):
    """A frame as it is asked for, right or wrong. `size` is the length it claims, in the shortest form unless it says
    (form, length)."""
    form, length = size if isinstance(size, tuple) else (None, len(data) if size is None else size)
    form = form or (7 if length < 126 else 16 if length < 1 << 16 else 64)
    head = {
        7: lambda: bytes((length,)), 16: lambda: struct.pack(">BH", 126, length),
        64: lambda: struct.pack(">BQ", 127, length),
    }[form]()
    if mask:
        key = b"\x12\x34\x56\x78"
        head = bytes((head[0] | 0x80,)) + head[1:] + key
        data = bytes(byte ^ key[at % 4] for at, byte in enumerate(data))
    return bytes((first,)) + head + data


TEXT, MORE, BINARY, CLOSE, PING, PONG = 0x81, 0x80, 0x82, 0x88, 0x89, 0x8A
GOODBYE = raw(CLOSE, b"\x03\xe8enough")
FRAMES = {
    "empty text": raw(TEXT),
    "text of 125": raw(TEXT, b"x" * 125),
    "text of 126": raw(TEXT, b"x" * 126),
    "text of 65,535": raw(TEXT, b"x" * 65535),
    "text of 65,536": raw(TEXT, b"x" * 65536),
    "binary": raw(BINARY, bytes(range(256)) * 20),
    "length in a longer form": raw(TEXT, b"hello", (16, 5)) + raw(TEXT, b"hello", (64, 5)),
    "1,000 messages": b"".join(raw(TEXT, b"message %d" % number) for number in range(1000)),
    "fragments": raw(0x01, b"one ") + raw(0x00, b"two ") + raw(MORE, b"three"),
    "a ping within fragments": raw(0x02, b"one ") + raw(PING, b"there?") + raw(MORE, b"two"),
    "a character cut by fragments": raw(0x01, b"\xe2\x82") + raw(MORE, b"\xac"),
    "ping": raw(PING, b"p" * 125),
    "pong that nobody asked for": raw(PONG, b"here"),
    "ping too large": raw(PING, b"p" * 126),
    "ping in fragments": raw(0x09, b"p") + raw(MORE, b"q"),
    "no UTF-8": raw(TEXT, b"\xff\xfe"),
    "half a character": raw(TEXT, b"\xe2\x82"),
    "without mask": raw(TEXT, b"hello", mask=False),
    "reserved bit": raw(TEXT | 0x40, b"hello"),
    "unknown opcode": raw(0x83, b"hello"),
    "unknown control opcode": raw(0x8B, b"hello"),
    "continuation of nothing": raw(MORE, b"hello"),
    "a message within fragments": raw(0x01, b"one ") + raw(TEXT, b"two"),
    "length beyond 63 bits": raw(TEXT, b"x", (64, 1 << 63)),
    "larger than the server takes": raw(BINARY, b"x", 1 << 40),
    "close without code": raw(CLOSE),
    "close with half a code": raw(CLOSE, b"\x03"),
    "close with a code that nobody may send": raw(CLOSE, b"\x03\xed"),
    "close with a code of the application": raw(CLOSE, b"\x0f\xa0why"),
    "close with no UTF-8": raw(CLOSE, b"\x03\xe8\xff"),
    "close and more": raw(CLOSE, b"\x03\xe8") + raw(TEXT, b"hello"),
}


def played(connection, number, data, step):
    """Sends frames in pieces of `step` bytes after an upgrade; returns all that comes back until the end."""
    connection.sendall(ask(number, "Sec-WebSocket-Protocol: xmpp"))
    lines, came = head(connection)
    expect_in("101", lines[0], "status line")

    with contextlib.suppress(OSError):  # The server may have had enough before the last piece.
        for at in range(0, len(data), step):
            connection.sendall(data[at:at + step])
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            came += part
    return came


@check("frames right and wrong, whole and byte by byte: the same bytes as from the server itself", needs=("node",))
def table(scope):
    # Node's ws alone: it answers frames in their order, where a server of threads may close before its last echo.
    packages("ws")
    number = node(scope)
    web = gate(scope, number)
    for name, frames in FRAMES.items():
        data = frames + GOODBYE
        with socket.create_connection(("127.0.0.1", number), WAIT) as plain:
            direct = played(plain, number, data, len(data))
        expect(direct, f"{name}: no answer from the server itself")
        for step in (len(data), 1) if len(data) < 1000 else (len(data), 1000):
            with contextlib.ExitStack() as once:
                through = played(connect(once, web), web.port, data, step)
            expect(through == direct, f"{name}, {step} at once: {through[:100]!r} instead of {direct[:100]!r}")


def frame(data):
    return websockets.frames.Frame(websockets.frames.Opcode.TEXT, data).serialize(mask=True)


def upgrade(two, protocol="websocket", more=()):
    """Asks for another protocol by extended CONNECT (RFC 8441)."""
    return two.open(
        "/chat", end=False, method="CONNECT",
        more=[(":protocol", protocol), ("sec-websocket-version", "13"), ("origin", "https://localhost"), *more],
    )


@check("100 WebSockets on one HTTP/2 connection, with requests beside them", needs=("node",))
def hundred(scope):
    packages("ws")
    web = gate(scope, node(scope), more="[http]\nstreams = 120\n")
    two = Two(scope, web)
    two.until(lambda: two.settings, "the server's settings")
    expect_equal(two.settings.get(8), 1, "SETTINGS_ENABLE_CONNECT_PROTOCOL")
    sockets = [upgrade(two) for _ in range(100)]
    two.until(lambda: all(two.streams[number][0] for number in sockets), "100 answers")
    expect_equal({two.streams[number][0] for number in sockets}, {200}, "answers")
    wanted = {}
    for number in random.Random(1).sample(sockets, 100):
        text = b"socket %d" % number
        wanted[number] = bytes((0x81, len(text))) + text
        two.send(number, frame(text))
        if number % 10 == 1:
            expect_equal(two.get("/beside")[0], 200, "a request beside")
    two.until(lambda: all(len(two.streams[number][1]) >= len(wanted[number]) for number in sockets), "100 echoes")
    for number in sockets:
        expect_equal(two.streams[number][1], wanted[number], f"echo of stream {number}")
    for number in sockets[:50]:  # Half close in order, half just end.
        two.send(number, b"\x88\x82\0\0\0\0\x03\xe8", end=True)
    two.until(lambda: all(two.streams[number][2] for number in sockets[:50]), "50 ends")
    for number in sockets[50:]:
        two.h2.reset_stream(number, 8)
    two.flush()
    expect_equal(two.get("/behind")[0], 200, "a request behind them")


@check("over HTTP/2 a protocol but websocket gets 501, a refusal is passed on", needs=("node",))
def unknown(scope):
    packages("ws")
    web = gate(scope, node(scope))
    two = Two(scope, web)
    two.until(lambda: two.settings, "the server's settings")
    number = upgrade(two, "connect-udp")
    two.until(lambda: two.streams[number][2], "an answer")
    expect_equal(two.streams[number][0], 501, "answer to an unknown protocol")
    expect_equal(two.get()[0], 200, "a request behind it")
    number = upgrade(two, more=[("sec-websocket-extensions", "permessage-deflate;;")])
    two.until(lambda: two.streams[number][2], "an answer")
    expect_equal(two.streams[number][0], 400, "the refusal of ws")
    number = upgrade(two, more=[("sec-websocket-protocol", "xmpp")])
    two.until(lambda: two.streams[number][0], "an answer")
    two.send(number, frame(b"who"))
    two.until(lambda: b"x-forwarded-for" in two.streams[number][1], "what the server saw")
    seen = two.streams[number][1].decode("utf-8", "replace")
    for part in ('"sec-websocket-protocol":"xmpp"', '"origin":"https://localhost"', '"x-forwarded-proto":"https"'):
        expect_in(part, seen, "what the server saw")
