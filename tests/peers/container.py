"""The image's final stage, built around the given binary and run as a stranger would run it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

from harness import CERTS, ROOT, Echo, Failed, binary, check, expect, expect_equal, expect_in, port, until
from sclient import Client

PODMAN = ("podman", "--cgroup-manager", "cgroupfs", "--runtime", "runc")
IMAGE = "localhost/vestibule-peers:test"


def static(path):
    """Whether an ELF file asks for no dynamic loader."""
    headers = subprocess.run(["readelf", "-lW", path], capture_output=True, text=True).stdout
    return "INTERP" not in headers


def image(scope):
    """Builds the final stage with the binary in the build stage's place."""
    if not static(binary()):
        raise Failed(f"{binary()} is not static: build it as the Dockerfile does (tests/run does)")
    stage = scope.folder()
    (stage / "out/etc/ssl/certs").mkdir(parents=True)
    shutil.copy(binary(), stage / "out/vestibule")
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", stage / "out/etc/ssl/certs/")
    code, text = scope.run(
        *PODMAN, "build", "--isolation=chroot", "--format=docker", "--pull=never", "--layers=false",
        "--build-context", f"build={stage}", "-t", IMAGE, ROOT, wait=120,
    )
    expect_equal(code, 0, f"podman build: {text[-2000:]}")
    scope.callback(lambda: scope.run(*PODMAN, "rmi", "--force", IMAGE))


def container(scope, front, backend):
    """Runs the image with everything taken away; returns the container's name."""
    name = f"vestibule-peers-{front}"
    scope.callback(lambda: scope.run(*PODMAN, "rm", "--force", "--time", "1", name))
    scope.start(
        *PODMAN, "run", "--name", name, "--network=host", "--ulimit", "nofile=8192:8192",
        "--ulimit", "nproc=4096:4096", "--read-only", "--read-only-tmpfs=false", "--cap-drop=all",
        "--security-opt", "no-new-privileges", "-v", f"{CERTS}:/certs:ro",
        "-e", f"VESTIBULE_ADMIN=127.0.0.1:{port()}", IMAGE, "run",
        "--forward", f"tls://127.0.0.1:{front}=127.0.0.1:{backend}",
        "--cert", "/certs/ecdsa.cert.pem", "--key", "/certs/ecdsa.key.pem",
    )
    return name


@check("the image: non-root, no shell, health check, stop signal", needs=("root", "podman", "runc", "readelf"))
def the_image(scope):
    image(scope)
    code, text = scope.run(*PODMAN, "image", "inspect", IMAGE)
    expect_equal(code, 0, f"podman inspect: {text}")
    about = json.loads(text)[0]
    config = about["Config"]
    expect_equal(config["User"], "65532:65532", "user")
    expect_equal(config["Entrypoint"], ["/vestibule"], "entry point")
    expect_equal(config["Cmd"], ["run"], "command")
    expect_equal(config["StopSignal"], "SIGTERM", "stop signal")
    expect_equal(about["Healthcheck"]["Test"], ["CMD", "/vestibule", "healthcheck"], "health check")
    expect_in("Apache-2.0", json.dumps(config["Labels"]), "labels")
    expect(about["Size"] < 40_000_000, f"{about['Size']} bytes are too many")


@check("read-only, non-root, no capability, PID 1: health, TLS, drain, exit 0", needs=("root", "podman", "runc", "readelf", "openssl"))
def in_a_container(scope):
    image(scope)
    backend = scope.enter_context(Echo())
    front = port()
    name = container(scope, front, backend.port)

    def healthy():
        return scope.run(*PODMAN, "exec", name, "/vestibule", "healthcheck")[0] == 0

    until(healthy, "vestibule healthcheck by podman exec", wait=30)
    live = Client(scope, front).echo()

    code, pid = scope.run(*PODMAN, "inspect", "--format", "{{.State.Pid}}", name)
    facts = Path(f"/proc/{pid.strip()}/status").read_text()
    for fact in (r"NSpid:.*\t1\n", r"Uid:\t65532\t65532", r"CapEff:\t0+\n", r"NoNewPrivs:\t1"):
        expect(re.search(fact, facts), f"not {fact!r} in its status:\n{facts}")

    code, text = scope.run(*PODMAN, "kill", "--signal", "TERM", name)
    expect_equal(code, 0, f"podman kill: {text}")
    until(lambda: not healthy(), "readiness withdrawn")
    live.echo().close()
    code, text = scope.run(*PODMAN, "wait", name, wait=20)
    expect_equal(text.strip(), "0", "exit code of the container")


@check("what the build stage is given is enough to build from", needs=("cargo",))
def build_context(scope):
    folder = scope.folder()
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            path = ROOT / line[1:]
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, folder / path.name)
    code, text = scope.run("cargo", "metadata", "--locked", "--offline", "--format-version=1", cwd=folder)
    expect_equal(code, 0, f"cargo metadata on the image's context: {text[-1500:]}")
