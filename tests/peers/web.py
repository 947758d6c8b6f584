"""curl as client and nginx as server: HTTP through `tls`, which passes every byte as it is."""

import hashlib
import os

from harness import CERTS, check, expect, expect_equal, expect_in, listening, port, until

MIB = 1 << 20
BODY = 64 * MIB

NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 128m;
    keepalive_requests 1000;
    server {{
        listen 127.0.0.1:{port};
        root {folder}/www;
        # The body that a client sends is kept in a file whose name is told.
        location = /upload {{
            client_body_in_file_only on;
            proxy_set_header X-Body $request_body_file;
            proxy_set_body off;
            proxy_pass http://127.0.0.1:{port}/kept;
        }}
        location = /kept {{ add_header X-Body $http_x_body always; return 200 "kept\\n"; }}
        location = /hello {{ return 200 "hello from nginx, connection $connection\\n"; }}
    }}
}}
"""


def nginx(scope):
    """Starts nginx with a 64 MiB file; returns its folder and port."""
    folder, number = scope.folder(), port()
    folder.chmod(0o777)
    (folder / "www").mkdir()
    (folder / "www" / "big").write_bytes(os.urandom(MIB) * (BODY // MIB))
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=number))
    server = scope.start(
        "nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"
    )
    until(lambda: listening(number) or not server.running, "nginx")
    expect(server.running, f"nginx ended:\n{server.text}")
    return folder, number


def curl(scope, number, *flags, wait=60):
    """Runs curl for paths of localhost; fails unless it succeeds."""
    code, text = scope.run(
        "curl", "-sS", "--fail", "--http1.1", "--cacert", CERTS / "ecdsa.cert.pem",
        "--resolve", f"localhost:{number}:127.0.0.1", *flags, wait=wait,
    )
    expect_equal(code, 0, f"exit code of curl, which said {text[-500:]!r}")
    return text


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def behind_nginx(scope, *flags):
    folder, behind = nginx(scope)
    front = port()
    scope.vestibule("--forward", f"tls://127.0.0.1:{front}=127.0.0.1:{behind}", *flags)
    return folder, front


@check("curl to nginx: GET, POST, and many requests on one connection", needs=("curl", "nginx"))
def requests(scope):
    _, front = behind_nginx(scope)
    url = f"https://localhost:{front}"
    for version in ("1.2", "1.3"):
        only = (f"--tlsv{version}", "--tls-max", version)
        expect_in("hello from nginx", curl(scope, front, *only, f"{url}/hello"), f"GET, {version}")
        kept = curl(scope, front, *only, "--data", "message=hello", f"{url}/upload")
        expect_in("kept", kept, f"POST, {version}")
        many = curl(scope, front, *only, *[f"{url}/hello"] * 50).split()
        expect_equal(len(set(many[4::5])), 1, f"{version}: connections for 50 requests")
        expect_equal(len(many), 250, f"{version}: words of 50 answers")


@check("64 MiB from nginx to curl, unchanged", needs=("curl", "nginx"))
def download(scope):
    folder, front = behind_nginx(scope)
    for version in ("1.2", "1.3"):
        got = folder / f"got-{version}"
        curl(scope, front, "--tls-max", version, "-o", got, f"https://localhost:{front}/big")
        expect_equal(sha256(got), sha256(folder / "www" / "big"), f"{version}: checksum")


@check("64 MiB from curl to nginx, unchanged", needs=("curl", "nginx"))
def upload(scope):
    folder, front = behind_nginx(scope)
    big = folder / "www" / "big"
    for version in ("1.2", "1.3"):
        head = curl(
            scope, front, "--tls-max", version, "-D", "-", "-H", "Expect:",
            "--data-binary", f"@{big}", f"https://localhost:{front}/upload",
        )
        names = [line.split(": ", 1)[1].strip() for line in head.splitlines() if line.startswith("X-Body: ")]
        expect(names and names[0], f"{version}: nginx names no file:\n{head}")
        expect_equal(sha256(names[0]), sha256(big), f"{version}: checksum")


@check("64 MiB without the buffer pool, unchanged", needs=("curl", "nginx"))
def download_without_pool(scope):
    folder, front = behind_nginx(scope, "--no-buffer-pool")
    curl(scope, front, "-o", folder / "got", f"https://localhost:{front}/big")
    expect_equal(sha256(folder / "got"), sha256(folder / "www" / "big"), "checksum")


@check("one request after another to many connections at once", needs=("curl", "nginx"))
def parallel(scope):
    _, front = behind_nginx(scope)
    text = curl(
        scope, front, "--parallel", "--parallel-immediate", "--parallel-max", "40",
        f"https://localhost:{front}/hello?[1-200]",
    )
    expect_equal(text.count("hello from nginx"), 200, "answers")
