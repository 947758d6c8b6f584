"""Vestibule in front of web servers: the settings, backends and clients that the checks of HTTP share."""

import socket
import ssl
import time
from pathlib import Path

import h2.config
import h2.connection
import h2.events

from harness import CERTS, ROOT, WAIT, Failed, Missing, expect, expect_equal, port, until

HERE = Path(__file__).resolve().parent
NODE = ROOT / "target" / "node"
HOST = "localhost"


class Gate:
    """A running proxy: `port` of its https listener, `plain` of the http one, `process`."""

    def __init__(self, process, number, plain):
        self.process, self.port, self.plain = process, number, plain

    @property
    def url(self):
        return f"https://{HOST}:{self.port}"


def gate(scope, *backends, upstream="", listener="", more="", plain=False, flags=(), **options):
    """Vestibule with an https listener for `backends`: ports on loopback, or whole addresses.

    `upstream` and `listener` are lines for those tables, `more` is the rest of the file.
    """
    number, http = port(), port() if plain else None
    text = f'[[listener]]\nname = "web"\nlisten = "https://127.0.0.1:{number}"\nupstream = "app"\n{listener}\n'
    if plain:
        text += f'[[listener]]\nname = "redirect"\nlisten = "http://127.0.0.1:{http}"\n'
    text += f'[[upstream]]\nname = "app"\n{upstream}\n'
    for backend in backends:
        address = f"http://127.0.0.1:{backend}" if isinstance(backend, int) else backend
        text += f'[[upstream.backend]]\naddress = "{address}"\n'
    settings = scope.folder() / "vestibule.toml"
    settings.write_text(text + more)
    process = scope.vestibule("--config", settings, "--drain-timeout", "100ms", *flags, **options)
    return Gate(process, number, http)


def node(scope, name="one"):
    """A server of behind.mjs; returns its port."""
    number = port()
    server = scope.start("node", HERE / "behind.mjs", number, name, cwd=NODE if NODE.is_dir() else HERE)
    server.wait_for("listening")
    return number


def nginx(scope, config, www=()):
    """nginx with `config` (servers), files of `www` (name, bytes) at {folder}/www; returns the folder."""
    folder = scope.folder()
    folder.chmod(0o777)
    (folder / "www").mkdir()
    for name, data in www:
        (folder / "www" / name).write_bytes(data)
    kinds = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\n"
        "events { worker_connections 4096; }\n"
        f"http {{\naccess_log off;\nclient_body_temp_path {folder}/body;\n{kinds}client_max_body_size 16m;\n"
        f"keepalive_requests 1000000;\n{config.format(folder=folder)}\n}}\n"
    )
    server = scope.start("nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log")
    until(lambda: (folder / "nginx.pid").exists() or not server.running, "nginx")
    expect(server.running, f"nginx ended:\n{server.text}")
    return folder


def packages(*names):
    for name in names:
        if not (NODE / "node_modules" / name).is_dir():
            raise Missing(f"{name} (npm, in target/node)")


def curl(scope, gate, *flags, path="/", ok=True, wait=30):
    """Runs curl against `gate`; returns its output."""
    code, text = scope.run(
        "curl", "-sS", "--max-time", "20", "--cacert", CERTS / "ecdsa.cert.pem",
        "--resolve", f"{HOST}:{gate.port}:127.0.0.1", *flags, f"{gate.url}{path}", wait=wait,
    )
    if ok:
        expect_equal(code, 0, f"exit code of curl {' '.join(map(str, flags))}, which said {text[-500:]!r}")
    return text


def code_of(scope, gate, *flags, path="/"):
    """The status and version that curl saw: "200 2"."""
    return curl(scope, gate, "-o", "/dev/null", "-w", "%{http_code} %{http_version}", *flags, path=path)


def context(*protocols):
    tls = ssl.create_default_context(cafile=str(CERTS / "ecdsa.cert.pem"))
    tls.set_alpn_protocols(list(protocols))
    return tls


def connect(scope, gate, *protocols, host=HOST):
    """A TLS connection to `gate`."""
    raw = scope.enter_context(socket.create_connection(("127.0.0.1", gate.port), timeout=WAIT))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return scope.enter_context(context(*(protocols or ("http/1.1",))).wrap_socket(raw, server_hostname=host))


class Two:
    """An HTTP/2 connection by the library h2; events of each stream are kept until asked for."""

    def __init__(self, scope, gate, host=HOST):
        self.authority = f"{host}:{gate.port}"
        self.tls = connect(scope, gate, "h2", host=host)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.streams = {}  # id: [status, bytes, ended]
        self.goaway = None
        self.settings = None
        self.flush()

    def flush(self):
        if data := self.h2.data_to_send():
            self.tls.sendall(data)

    def open(self, path="/", end=True, method="GET", more=()):
        number = self.h2.get_next_available_stream_id()
        self.streams[number] = [None, b"", False]
        head = [(":method", method), (":scheme", "https"), (":authority", self.authority), (":path", path), *more]
        self.h2.send_headers(number, head, end_stream=end)
        self.flush()
        return number

    def send(self, number, data, end=False):
        self.h2.send_data(number, data, end_stream=end)
        self.flush()

    def read(self):
        """Takes what comes next; False at the end of the connection."""
        try:
            data = self.tls.recv(65536)
        except (ConnectionError, ssl.SSLEOFError):
            data = b""
        if not data:
            return False
        for event in self.h2.receive_data(data):
            stream = self.streams.get(getattr(event, "stream_id", None))
            if isinstance(event, h2.events.ResponseReceived):
                stream[0] = int(dict(event.headers)[":status"])
            elif isinstance(event, h2.events.DataReceived):
                stream[1] += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                stream[2] = True
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.goaway = event.error_code
            elif isinstance(event, h2.events.RemoteSettingsChanged):
                self.settings = self.h2.remote_settings
        self.flush()
        return True

    def until(self, condition, what):
        deadline = time.monotonic() + WAIT
        while not condition():
            expect(time.monotonic() < deadline, f"not within {WAIT:g} s: {what}")
            expect(self.read(), f"the end of the connection instead of {what}")

    def get(self, path="/"):
        """A whole request; returns status and body."""
        number = self.open(path)
        self.until(lambda: self.streams[number][2], f"the answer to {path}")
        return tuple(self.streams.pop(number)[:2])


def resident(process):
    """Bytes of memory that a process holds."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise Failed(f"no memory of {process.pid} to read: it has ended")
