"""Start, reload and end of the process as an operator sees them."""

import os
import shutil
import signal
import socket
import ssl

from harness import CERTS, binary, check, expect, expect_equal, expect_in, pair_flags, port, status, until
from sclient import Client


@check("SIGTERM drains: the live go on, newcomers are refused, exit 0", needs=("openssl",))
def term_drains(scope):
    for number in (signal.SIGTERM, signal.SIGINT):
        proxy, front, _ = scope.tls_echo("--drain-timeout", "30s")
        live = Client(scope, front).echo()
        proxy.signal(number)
        until(lambda: status(proxy.admin, "/readyz") in (503, None), "readiness withdrawn")
        until(lambda: refuses(front), "a refused newcomer")
        live.echo()
        expect(proxy.running, f"ended with a live connection:\n{proxy.text}")
        live.close()
        expect_equal(proxy.wait(), 0, f"exit code after {number.name}")


@check("a second SIGTERM ends at once, and so does the drain deadline", needs=("openssl",))
def term_twice(scope):
    proxy, front, _ = scope.tls_echo("--drain-timeout", "60s")
    live = Client(scope, front).echo()
    proxy.signal(signal.SIGTERM)
    until(lambda: refuses(front), "a refused newcomer")
    proxy.signal(signal.SIGTERM)
    expect_equal(proxy.wait(3), 0, "exit code after the second SIGTERM")
    live.process.wait()

    proxy, front, _ = scope.tls_echo("--drain-timeout", "1s")
    live = Client(scope, front).echo()
    proxy.signal(signal.SIGTERM)
    expect_equal(proxy.wait(5), 0, "exit code after the drain deadline")
    live.process.wait()


def refuses(front):
    with socket.socket() as newcomer:
        newcomer.settimeout(2)
        return newcomer.connect_ex(("127.0.0.1", front)) != 0


@check("SIGHUP shows the new certificate to newcomers and leaves the live alone", needs=("openssl",))
def reload(scope):
    pair, proxy, front = movable_pair(scope)
    live = Client(scope, front).echo()
    old = live.serial
    pair("rsa")
    proxy.signal(signal.SIGHUP)
    until(lambda: serial(scope, front) != old, "the new certificate")
    live.echo().close()


@check("SIGHUP with a broken file keeps the old pair and says why", needs=("openssl",))
def broken_reload(scope):
    pair, proxy, front = movable_pair(scope)
    old = serial(scope, front)
    cert, key = pair("ecdsa")
    for broken, content in ((cert, "no certificate\n"), (key, (CERTS / "rsa.key.pem").read_text()), (key, None)):
        pair("ecdsa")
        if content is None:
            broken.unlink()
        else:
            broken.write_text(content)
        seen = len(proxy.text)
        proxy.signal(signal.SIGHUP)
        proxy.wait_for(broken.name, after=seen)
        expect_equal(serial(scope, front), old, f"certificate after a broken {broken.name}")
        expect_equal(status(proxy.admin, "/readyz"), 200, "readiness")
    pair("rsa")
    proxy.signal(signal.SIGHUP)
    until(lambda: serial(scope, front) != old, "the certificate after the repair")


def movable_pair(scope):
    """A proxy whose pair lies in a folder of its own, and a function that puts another there."""
    folder = scope.folder()
    paths = folder / "moved.cert.pem", folder / "moved.key.pem"

    def pair(name):
        shutil.copy(CERTS / f"{name}.cert.pem", paths[0])
        shutil.copy(CERTS / f"{name}.key.pem", paths[1])
        return paths

    pair("ecdsa")
    proxy, front, _ = scope.tls_echo("--cert", paths[0], "--key", paths[1], cert=None)
    return pair, proxy, front


def serial(scope, front):
    client = Client(scope, front).echo()
    client.close()
    return client.serial


@check("as PID 1 of a new PID namespace: serves, reaps nothing, ends on SIGTERM", needs=("root", "unshare", "openssl"))
def as_pid_1(scope):
    namespace, front, _ = scope.tls_echo(before=("unshare", "--pid", "--fork", "--kill-child"))
    inside = int(until(lambda: children(namespace.pid), "the process inside")[0])
    with open(f"/proc/{inside}/status") as lines:
        pids = next(line for line in lines if line.startswith("NSpid:")).split()
    expect_equal(pids[-1], "1", "its id inside the namespace")
    live = Client(scope, front).echo()
    os.kill(inside, signal.SIGTERM)
    until(lambda: refuses(front), "a refused newcomer")
    live.echo().close()
    expect_equal(namespace.wait(), 0, "exit code")


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def does_not_start(scope, *flags, forward=None):
    """Starts with a fault, expects exit code 1 and returns what was said."""
    forward = forward or f"tls://127.0.0.1:{port()}=127.0.0.1:9"
    code, text = scope.run(binary(), "run", "--forward", forward, *flags, wait=20)
    expect_equal(code, 1, f"exit code with {flags}, which said:\n{text}")
    return text


@check("faults of certificate files are told at start, with the file's name")
def faults_of_files(scope):
    folder = scope.folder()
    good_cert, good_key = CERTS / "ecdsa.cert.pem", CERTS / "ecdsa.key.pem"
    empty, locked = folder / "empty.pem", folder / "locked.pem"
    empty.write_text("")
    truncated = folder / "truncated.pem"
    truncated.write_text(good_key.read_text()[:80])
    locked.mkdir()  # Unreadable even for root.
    for cert, key, named in (
        (good_cert, CERTS / "rsa.key.pem", "rsa.key.pem"),
        (good_cert, empty, "empty.pem"),
        (good_cert, truncated, "truncated.pem"),
        (empty, good_key, "empty.pem"),
        (locked, good_key, "locked.pem"),
        (good_cert, folder / "absent.pem", "absent.pem"),
    ):
        expect_in(named, does_not_start(scope, "--cert", cert, "--key", key), "the fault")


@check("a port in use and an unresolvable backend are told at start")
def faults_of_addresses(scope):
    used = port()
    scope.enter_context(socket.create_server(("127.0.0.1", used)))
    text = does_not_start(
        scope, *pair_flags("ecdsa"), forward=f"tls://127.0.0.1:{used}=127.0.0.1:9"
    )
    expect_in(str(used), text, "the port in use")
    text = does_not_start(
        scope, *pair_flags("ecdsa"), forward=f"tls://127.0.0.1:{port()}=nowhere.invalid:5222"
    )
    expect_in("nowhere.invalid", text, "the unresolvable backend")


@check("check finds the same faults without opening a socket; wrong usage exits 2")
def check_command(scope):
    used = port()
    scope.enter_context(socket.create_server(("127.0.0.1", used)))
    forward = ("--forward", f"tls://127.0.0.1:{used}=127.0.0.1:9")
    code, text = scope.run(binary(), "check", *forward, *pair_flags("ecdsa"))
    expect_equal(code, 0, f"exit code of a good check, which said:\n{text}")
    mismatch = ("--cert", CERTS / "ecdsa.cert.pem", "--key", CERTS / "rsa.key.pem")
    code, text = scope.run(binary(), "check", *forward, *mismatch)
    expect_equal(code, 1, f"exit code of a mismatch, which said:\n{text}")
    expect_in("rsa.key.pem", text, "the mismatch")
    code, text = scope.run(binary(), "run", "--no-such-flag")
    expect_equal(code, 2, f"exit code of a wrong flag, which said:\n{text}")


@check("healthcheck tells a running instance from none", needs=("openssl",))
def healthcheck(scope):
    proxy, _, _ = scope.tls_echo()
    at = ("--admin", f"127.0.0.1:{proxy.admin}")
    code, text = scope.run(binary(), "healthcheck", *at)
    expect_equal(code, 0, f"exit code beside a running instance, which said:\n{text}")
    proxy.end()
    code, _ = scope.run(binary(), "healthcheck", *at)
    expect_equal(code, 1, "exit code without one")


@check("demo: what it prints to paste works, and Ctrl-C ends it at once", needs=("curl", "openssl"))
def demo(scope):
    process = scope.start(binary(), "demo")
    process.wait_for("Ctrl-C ends it")
    page = process.wait_for(r"curl -ksI --http1\.1 (https://\S+)").group(1)
    expect_in(f"curl -ksI --http2 {page}", process.text, "what it prints")
    echo = process.wait_for(r"openssl s_client -quiet -connect 127\.0\.0\.1:(\d+)").group(1)
    metrics = process.wait_for(r"curl (http://\S+/metrics)").group(1)
    for version in ("1.1", "2"):
        code, text = scope.run("curl", "-ksSI", "--fail", f"--http{version}", page)
        expect_equal(code, 0, f"curl -I {page} by HTTP/{version}: {text[-500:]}")
        expect_in(f"HTTP/{version} 200", text, f"the answer by HTTP/{version}")
        code, text = scope.run("curl", "-sSk", "--fail", f"--http{version}", page)
        expect_equal(code, 0, f"curl -k {page} by HTTP/{version}: {text[-500:]}")
        expect_in("<html", text.lower(), f"the page by HTTP/{version}")
    expect_in('"client":"127.0.0.1","scheme":"https"', welcome(page), "what the chat knows of who enters it")
    live = Client(scope, echo).echo()
    code, text = scope.run("curl", "-sS", "--fail", metrics)
    expect_equal(code, 0, f"curl {metrics}: {text[-500:]}")
    expect_in("vestibule_connections_total", text, "the metrics")
    process.signal(signal.SIGINT)
    expect_equal(process.wait(3), 0, "exit code after Ctrl-C with a live connection")
    live.process.wait()


def welcome(page):
    """Enters the demo's chat by WebSocket and returns the first of its words."""
    host = page.removeprefix("https://").removesuffix("/")
    name, _, number = host.partition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((name, int(number)), 5) as plain, context.wrap_socket(plain, server_hostname=name) as chat:
        chat.sendall(
            f"GET /ws HTTP/1.1\r\nHost: {host}\r\nOrigin: https://{host}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        said = b""
        while b"}" not in said:
            more = chat.recv(4096)
            expect(more, f"the chat ended behind {said!r}")
            said += more
    expect_in("HTTP/1.1 101 ", said.decode(errors="replace"), "the answer to the upgrade")
    return said.decode(errors="replace")
