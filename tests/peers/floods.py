"""Floods of HTTP/2 frames, made with hyperframe, and slowhttptest, each beside an honest client."""

import select
import ssl
import threading
import time

import hpack
from gates import HOST, Two, code_of, connect, gate, nginx, node, resident
from harness import Failed, check, expect, expect_equal, expect_in, listening, port, until
from hyperframe.frame import (
    ContinuationFrame, DataFrame, HeadersFrame, PingFrame, PriorityFrame, RstStreamFrame, SettingsFrame,
    WindowUpdateFrame,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CALM = 11  # ENHANCE_YOUR_CALM
MIB = 1 << 20


class Raw:
    """An HTTP/2 connection without any rules: frames go out as they are, and what comes back is noted."""

    def __init__(self, scope, gate, settings=None):
        self.authority = f"{HOST}:{gate.port}"
        self.tls = connect(scope, gate, "h2")
        self.tls.sendall(PREFACE + SettingsFrame(0, settings=settings or {}).serialize())
        self.tls.setblocking(False)
        self.goaway = None  # the code of it
        self.resets = []  # codes of RST_STREAM
        self.heads = 0
        self.open = True
        self._data = b""
        self._out = b""

    def head(self, number, method="GET", path="/", more=(), flags=("END_HEADERS", "END_STREAM"), block=None):
        """A HEADERS frame, of names that HPACK has by heart and literals that it need not keep."""
        if block is None:
            fields = [(":method", method), (":scheme", "https"), (":authority", self.authority), (":path", path), *more]
            coder = hpack.Encoder()
            coder.header_table_size = 0
            block = coder.encode(fields)
        return HeadersFrame(number, block, flags=flags).serialize()

    def step(self, wait=0.0):
        """Sends and receives what can be without waiting longer than `wait`."""
        select.select([self.tls], [self.tls] if self._out else [], [], wait)
        try:
            while self._out:
                self._out = self._out[self.tls.send(self._out[:16384]):]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError:
            self._out = b""
        try:
            while data := self.tls.recv(65536):
                self._data += data
            self.open = False
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self.open = False
        self._note()

    def _note(self):
        while len(self._data) >= 9:
            size, kind, code = int.from_bytes(self._data[:3], "big"), self._data[3], self._data[9:17]
            if len(self._data) < 9 + size:
                return
            if kind == 7:
                self.goaway = int.from_bytes(code[4:8], "big")
            elif kind == 3:
                self.resets.append(int.from_bytes(code[:4], "big"))
            elif kind == 1:
                self.heads += 1
            elif kind == 4 and not self._data[4] & 1:
                self._out += SettingsFrame(0, flags=("ACK",)).serialize()
            self._data = self._data[9 + size:]

    def flood(self, make, most, seconds=8.0):
        """Sends what `make(n)` returns for n from 0 on, until the connection has ended; returns how many went out."""
        deadline = time.monotonic() + seconds
        sent = 0
        while self.open and sent < most and time.monotonic() < deadline:
            if len(self._out) < 65536 and self.goaway is None:
                batch = min(64, most - sent)
                self._out += b"".join(make(number) for number in range(sent, sent + batch))
                sent += batch
            self.step(0.01 if self.goaway is not None else 0.0)
        return sent

    def end(self, seconds=5.0):
        """Waits for the end of the connection; False if there is none."""
        deadline = time.monotonic() + seconds
        while self.open and time.monotonic() < deadline:
            self.step(0.05)
        return not self.open


class Honest:
    """A client beside the flood: it asks all the time, and every answer must come soon."""

    def __init__(self, scope, gate, path="/hello"):
        self.two, self.path = Two(scope, gate), path
        self.two.get(path)
        self.process = gate.process
        self.before = resident(self.process)
        self.most = self.before
        self.answers, self.worst, self.failed = 0, 0.0, None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            while not self._stop.wait(0.02):
                started = time.monotonic()
                status, _ = self.two.get(self.path)
                expect_equal(status, 200, "status of the honest client")
                self.worst = max(self.worst, time.monotonic() - started)
                self.answers += 1
                self.most = max(self.most, resident(self.process))
        except Exception as failed:
            self.failed = failed

    def end(self, what):
        """Stops asking, and judges."""
        target = self.answers + 2  # It must still be served behind the flood.
        until(lambda: self.answers >= target or self.failed, f"answers for the honest client, {what}")
        self._stop.set()
        self._thread.join(10)
        if self.failed:
            raise Failed(f"the honest client, {what}: {self.failed}")
        expect(self.worst < 5, f"the honest client waited {self.worst:.1f} s, {what}")
        grown = self.most - self.before
        expect(grown < 20 * MIB, f"memory grew by {grown / MIB:.1f} MiB, {what}")


SERVER = """
server {{
    listen 127.0.0.1:%d;
    root {folder}/www;
    location = /hello {{ return 200 "hello from nginx\\n"; }}
}}
"""


def web(scope, big=0, **options):
    number = port()
    nginx(scope, SERVER % number, [("big", bytes(big))] if big else ())
    until(lambda: listening(number), "nginx")
    return gate(scope, number, **options)


def calmed(scope, gate, what, make, most=100_000, codes=(CALM,), prepare=None):
    """A flood of `make(raw, n)`, which must end with GOAWAY of one of these codes."""
    honest = Honest(scope, gate)
    raw = Raw(scope, gate)
    if prepare:
        raw._out += prepare(raw)
    sent = raw.flood(lambda number: make(raw, number), most)
    expect(raw.end(), f"{what}: {sent} were taken and the connection lives")
    expect(raw.goaway in codes, f"{what}: GOAWAY {raw.goaway} instead of {codes} after {sent}")
    honest.end(what)
    return sent


def odd(number):
    return 2 * number + 1


@check("rapid reset, by the client and by its mistakes: ENHANCE_YOUR_CALM", needs=("nginx",))
def resets(scope):
    behind = web(scope)
    calmed(
        scope, behind, "HEADERS and RST_STREAM",
        lambda raw, n: raw.head(odd(n), path="/hello") + RstStreamFrame(odd(n), error_code=8).serialize(),
    )
    # CVE-2025-8671: a fault in the stream makes the server reset it.
    calmed(
        scope, behind, "HEADERS and a WINDOW_UPDATE that overflows",
        lambda raw, n: raw.head(odd(n), "POST", "/hello", flags=("END_HEADERS",))
        + WindowUpdateFrame(odd(n), window_increment=0x7FFFFFFF).serialize(),
    )


@check("PING, SETTINGS, PRIORITY, WINDOW_UPDATE, unknown frames without end: ENHANCE_YOUR_CALM", needs=("nginx",))
def idle_frames(scope):
    behind = web(scope)
    for what, frame in (
        ("PING", PingFrame(0, opaque_data=b"12345678")),
        ("SETTINGS", SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 65535})),
        ("empty SETTINGS", SettingsFrame(0)),
        ("PRIORITY", PriorityFrame(1, depends_on=0, stream_weight=16)),
        ("WINDOW_UPDATE", WindowUpdateFrame(0, window_increment=1)),
    ):
        data = frame.serialize()
        calmed(scope, behind, what, lambda raw, n, data=data: data)
    unknown = b"\0\0\1\xfa\0\0\0\0\0x"
    calmed(scope, behind, "frames of an unknown kind", lambda raw, n: unknown)


@check("empty DATA and CONTINUATION without end: ENHANCE_YOUR_CALM", needs=("node",))
def empty(scope):
    behind = gate(scope, node(scope))
    data = DataFrame(1, b"").serialize()
    calmed(
        scope, behind, "empty DATA", lambda raw, n: data,
        prepare=lambda raw: raw.head(1, "POST", "/", flags=("END_HEADERS",)),
    )
    for what, block in (("empty CONTINUATION", b""), ("CONTINUATION", b"\x40\x01a\x01b" * 100)):
        more = ContinuationFrame(1, block).serialize()
        calmed(
            scope, behind, what, lambda raw, n, more=more: more, codes=(CALM, 1),
            prepare=lambda raw: raw.head(1, flags=()),
        )


@check("an HPACK bomb is refused, in memory that does not grow", needs=("nginx",))
def bomb(scope):
    behind = web(scope)
    host = f"{HOST}:{behind.port}".encode()
    # What needs no table: GET, https, / and the host.
    fields = b"\x82\x87\x84\x01" + bytes((len(host),)) + host
    for what, name in (("a large field again and again", b"x-bomb"), ("crumbs of a cookie", b"cookie")):
        honest = Honest(scope, behind)
        raw = Raw(scope, behind)
        # One field of 3.9 KiB is put into the table; from then on one byte stands for it.
        value = b"v" * 3900
        literal = b"\x40" + bytes((len(name),)) + name + b"\x7f" + varint(len(value) - 127) + value
        raw._out += raw.head(1, block=fields + literal)

        def make(number, raw=raw):
            return raw.head(odd(number + 1), block=fields + b"\xbe" * 12000)

        sent = raw.flood(make, 300)
        raw.step(0.5)
        expect(raw.goaway != 9, f"{what}: the table is not what it should be for this check")
        expect(not raw.open or raw.heads + len(raw.resets) >= sent, f"{what}: no refusal of {sent}")
        honest.end(what)


def varint(value):
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


@check("100 streams that take nothing, on each of three connections: memory is bounded, and they are ended", needs=(
    "nginx",
))
def stalled(scope):
    # More than fits on the way, and not so much that nginx is busy filling the kernel's buffers.
    behind = web(scope, big=MIB // 4, more='[timeouts]\nwrite = "2s"\n')
    honest = Honest(scope, behind)
    stalls = [Raw(scope, behind, {SettingsFrame.INITIAL_WINDOW_SIZE: 0}) for _ in range(3)]
    for raw in stalls:
        raw._out += b"".join(raw.head(odd(number), path="/big") for number in range(100))
        raw.step()
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline and not all(given_up(raw) for raw in stalls):
        for raw in stalls:
            if raw.open:
                raw.step(0.01)
    left = [100 - len(raw.resets) for raw in stalls if not given_up(raw)]
    expect(not left, f"connections with streams that live after 8 s: {left}")
    honest.end("stalled streams")


def given_up(raw):
    return not raw.open or len(raw.resets) == 100


@check("slowhttptest in its four modes: the server ends them, an honest client is served", needs=(
    "slowhttptest", "nginx", "curl",
))
def slow(scope):
    behind = web(
        scope, big=4 * MIB,
        more='[timeouts]\nrequest = "1s"\nrequest_body = "1s"\nwrite = "1s"\nkeep_alive = "1s"\nhandshake = "2s"\n'
        '[log]\naccess = "-"\n',
    )
    honest = Honest(scope, behind)
    common = ("-c", "50", "-r", "50", "-l", "5", "-p", "2", "-i", "1")
    attacks = {
        "slow headers": ("-H", "-u", f"{behind.url}/hello"),
        "slow body": ("-B", "-s", "8192", "-t", "POST", "-u", f"{behind.url}/hello"),
        "ranges": ("-R", "-a", "5", "-b", "3000", "-u", f"{behind.url}/big"),
        "slow reading": ("-X", "-w", "512", "-y", "1024", "-n", "5", "-z", "32", "-k", "1", "-u", f"{behind.url}/big"),
    }
    started = {what: scope.start("slowhttptest", *common, *flags) for what, flags in attacks.items()}
    # Who reads slowly does not look for the end, which would come behind all that it has not read.
    reading = started.pop("slow reading")
    for what, attack in started.items():
        attack.wait(15)
        expect_in("No open connections left", attack.text, what)
    until(lambda: behind.process.text.count("outcome=write_timeout") >= 50, "the end of 50 slow readers")
    expect(reading.running, f"slow reading ended by itself:\n{reading.text}")
    expect_equal(code_of(scope, behind, path="/hello")[:3], "200", "curl behind it all")
    honest.end("slowhttptest")
