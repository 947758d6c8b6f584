"""What every topic of the real-peer tests shares: checks, processes, ports, the proxy itself.

A topic is a module with functions marked `@check("what is proved")`. A check passes by returning and
fails by raising; `expect` raises with a reason. Whatever a check starts goes through `Scope`, which
ends it by its process id when the check is over, however it ended. Nothing sleeps for an event:
`Running.wait_for` waits for output, `until` polls a condition, both with a bound.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CERTS = ROOT / "certs"
WAIT = 10.0  # seconds, for anything that should take well under one


class Failed(Exception):
    """A check's expectation was not met; the message is the reason that is printed."""


class Missing(Exception):
    """A program that the check drives is not installed."""


def expect(condition, reason):
    if not condition:
        raise Failed(reason)


def expect_in(part, whole, what):
    expect(part in whole, f"{what}: no {part!r} in:\n{tail(whole)}")


def expect_equal(seen, wanted, what):
    expect(seen == wanted, f"{what}: {seen!r} instead of {wanted!r}")


def tail(text, lines=25):
    return "\n".join("    | " + line for line in text.splitlines()[-lines:])


CHECKS = []


def check(title, needs=()):
    """Marks a function as a check. `needs` names the programs that it drives."""

    def mark(function):
        CHECKS.append((function.__module__, title, needs, function))
        return function

    return mark


def need(*programs):
    for program in programs:
        if program == "root":
            if os.geteuid() != 0:
                raise Missing("the right to switch users (run as root)")
        elif not shutil.which(program):
            raise Missing(program)


def binary():
    """The program under test: VESTIBULE, else the newest local build."""
    if os.environ.get("VESTIBULE"):
        return str(Path(os.environ["VESTIBULE"]).resolve())
    for built in ("release", "debug"):
        path = ROOT / "target" / built / "vestibule"
        if path.exists():
            return str(path)
    raise SystemExit("no binary: build one (cargo build --release) or name it in VESTIBULE")


# Below 32768: the kernel takes the ports above for outgoing connections, at any moment.
_next_port = 20000 + os.getpid() % 500 * 20


def port():
    """A loopback port that nobody listens on."""
    global _next_port
    while True:
        _next_port = _next_port + 1 if _next_port < 32700 else 20000
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", _next_port))
                return _next_port


def until(condition, what, wait=WAIT):
    """Polls until `condition()` is true and returns its value."""
    deadline = time.monotonic() + wait
    while not (value := condition()):
        expect(time.monotonic() < deadline, f"not within {wait:g} s: {what}")
        time.sleep(0.02)
    return value


def listening(number, host="127.0.0.1"):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, number)) == 0


class Running:
    """A process whose output is collected while it runs."""

    def __init__(self, command, **options):
        self.command = [str(word) for word in command]
        options.setdefault("stdin", subprocess.PIPE)
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, **options
        )
        self.pid = self.process.pid
        self._text = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while data := os.read(self.process.stdout.fileno(), 65536):
            with self._news:
                self._text += data.decode("utf-8", "replace")
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def text(self):
        with self._news:
            return self._text

    def wait_for(self, pattern, wait=WAIT, after=0):
        """Waits until the output holds `pattern` behind position `after`; returns the match."""
        deadline = time.monotonic() + wait
        with self._news:
            while not (found := re.compile(pattern).search(self._text, after)):
                left = deadline - time.monotonic()
                ended = not self._reader.is_alive()
                if left <= 0 or ended:
                    why = "it ended" if ended else f"not within {wait:g} s"
                    raise Failed(f"{self.name}: no {pattern!r}, {why}:\n{tail(self._text)}")
                self._news.wait(min(left, 0.2))
            return found

    def send(self, text):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(text.encode())

    def end_input(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait(self, wait=WAIT):
        """Waits for the end and returns the exit code."""
        try:
            code = self.process.wait(wait)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} runs still after {wait:g} s:\n{tail(self.text)}") from None
        self._reader.join(2)
        return code

    def signal(self, number):
        os.kill(self.pid, number)

    @property
    def running(self):
        return self.process.poll() is None

    @property
    def name(self):
        return Path(self.command[0]).name

    def end(self):
        """Ends the process, gently at first; never raises."""
        for number, wait in ((signal.SIGTERM, 3), (signal.SIGKILL, 3)):
            if not self.running:
                break
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self.process.send_signal(number)
                self.process.wait(wait)
        self._reader.join(2)
        if self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


class Scope(contextlib.ExitStack):
    """Everything that a check starts, ended when the check is over."""

    def folder(self):
        """A scratch folder that other users may enter."""
        path = Path(tempfile.mkdtemp(prefix="vestibule-peers-"))
        path.chmod(0o755)
        self.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    def start(self, *command, **options):
        running = Running(command, **options)
        self.callback(running.end)
        return running

    def run(self, *command, wait=60, **options):
        """Runs a command to its end; returns (exit code, output)."""
        options.setdefault("stdin", subprocess.DEVNULL)
        running = self.start(*command, **options)
        return running.wait(wait), running.text

    def vestibule(self, *flags, ready=True, cert="ecdsa", before=(), **options):
        """Starts the proxy and waits until it says that it is ready.

        `cert` names a pair in certs/ (None: the flags name one), `before` is a command to run it under.
        """
        admin = port()
        pair = pair_flags(cert) if cert else []
        running = self.start(
            *before, binary(), "run", "--admin", f"127.0.0.1:{admin}", *pair, *flags, **options
        )
        running.admin = admin
        if ready:

            def answers():
                expect(running.running, f"vestibule ended at start:\n{tail(running.text)}")
                return status(admin, "/readyz") == 200

            until(answers, f"readiness of vestibule:\n{tail(running.text)}")
        return running

    def tls_echo(self, *flags, scheme="tls", **options):
        """An echo backend and the proxy in front; returns (proxy, port, backend)."""
        backend = self.enter_context(Echo())
        front = port()
        forward = f"{scheme}://127.0.0.1:{front}=127.0.0.1:{backend.port}"
        return self.vestibule("--forward", forward, *flags, **options), front, backend


_shared_scope = Scope()
_shared = {}


def shared(make):
    """What `make(scope)` returns: made once, by the first check that asks, and kept until `end_shared`."""
    if make not in _shared:
        try:
            _shared[make] = make(_shared_scope)
        except Exception as failed:  # The next check that asks must not wait for the same failure.
            _shared[make] = failed
    if isinstance(_shared[make], Exception):
        raise _shared[make].with_traceback(None)
    return _shared[make]


def end_shared():
    _shared.clear()
    _shared_scope.close()


def pair_flags(name):
    return ["--cert", CERTS / f"{name}.cert.pem", "--key", CERTS / f"{name}.key.pem"]


def status(admin, path):
    """HTTP status of the admin listener's answer, or None."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}{path}", timeout=2) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def metric(proxy, pattern):
    """Sum of all samples whose name and labels match `pattern`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.admin}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#"]
    return sum(float(value) for name, value in lines if re.search(pattern, name))


class Echo:
    """A TCP server that sends back what it gets, and tells how each connection ended."""

    def __init__(self):
        self.port = port()
        self.ends = []  # "fin" or "rst", in the order of ending
        self._socket = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._open = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A shutdown wakes the accepting thread, which a mere close would not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        self._open.add(connection)
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
                self.ends.append("fin")
            except OSError:
                self.ends.append("rst")
        self._open.discard(connection)

    def end(self, number=0):
        """How connection `number` ended, once it has."""
        until(lambda: len(self.ends) > number, "the end of a connection at the backend")
        return self.ends[number]
