"""A small XMPP client that shows and sends every byte, for what other people's clients do not do.

`Stream` is one connection: `open`, `starttls` or `tls`, `login`, then `send` and `read`. It blocks, with a
deadline on each wait. Server text is searched with patterns, not parsed: checks know what they expect.
"""

import base64
import hashlib
import hmac
import re
import secrets
import socket
import ssl
import time

from harness import Failed, Missing, expect, tail

STREAMS = "http://etherx.jabber.org/streams"
HASHES = {"SCRAM-SHA-1": "sha1", "SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def header(to, namespace="jabber:client", extra=""):
    to = f" to='{to}'" if to else ""
    namespaces = f"xmlns='{namespace}' xmlns:stream='{STREAMS}'{extra}"
    return f"<?xml version='1.0'?><stream:stream{to} version='1.0' {namespaces}>"


class Stream:
    """A connection to `port`. `first` is sent before anything else: a PROXY header, say. `source` is the
    address to come from, which on loopback may be any of 127.0.0.0/8."""

    def __init__(self, port, first=b"", source=None, wait=10):
        self.wait = wait
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=wait, source_address=(source, 0) if source else None
        )
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.local_port = self.socket.getsockname()[1]
        self.text = ""  # all that came since the latest stream header of ours
        self.ended = False
        self.host = self.jid = None
        if first:
            self.send(first)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data.encode() if isinstance(data, str) else data)

    def read(self, pattern, wait=None):
        """Waits until `pattern` was received, returns the match and forgets all up to its end."""
        deadline = time.monotonic() + (wait or self.wait)
        while not (found := re.search(pattern, self.text, re.S)):
            expect(not self.ended, f"the stream ended without {pattern!r}:\n{tail(self.text)}")
            self._receive(deadline, pattern)
        self.text = self.text[found.end():]
        return found

    def read_end(self, wait=None):
        """Waits for the end of the stream; returns what came before it."""
        deadline = time.monotonic() + (wait or self.wait)
        while not self.ended:
            self._receive(deadline, "an end")
        return self.text

    def _receive(self, deadline, wanted):
        left = deadline - time.monotonic()
        if left <= 0:
            raise Failed(f"nothing with {wanted!r} in time:\n{tail(self.text)}")
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(65536)
        except (TimeoutError, ssl.SSLWantReadError):
            return
        except (ConnectionError, ssl.SSLError) as error:
            self.text += f"[{type(error).__name__}]"
            data = b""
        self.ended = not data
        self.text += data.decode("utf-8", "replace")

    def open(self, to, namespace="jabber:client", extra=""):
        """Sends a stream header and waits for the features, which are returned."""
        self.host, self.text = to, ""
        self.send(header(to, namespace, extra))
        return self.read(
            r"<(stream:)?features[^>]*/>|<(stream:)?features\b.*?</(stream:)?features>|<stream:error.*</stream:error>"
        ).group()

    def starttls(self, exporter=False):
        """Asks for TLS and does the handshake."""
        self.send("<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>")
        self.read(r"<proceed [^>]*/>")
        return self.tls(self.host, exporter=exporter)

    def tls(self, name, alpn=(), exporter=False, version=None):
        """TLS from here on; `name` is sent as SNI. `exporter`: by pyOpenSSL, whose connections tell what
        channel binding needs."""
        self.text, self.host = "", self.host or name
        if exporter:
            self.socket = _Exporter(self.socket, name, alpn, self.wait)
            return self
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if version:
            context.minimum_version = context.maximum_version = version
        if alpn:
            context.set_alpn_protocols(alpn)
        self.socket.settimeout(self.wait)
        self.socket = context.wrap_socket(self.socket, server_hostname=name, suppress_ragged_eofs=False)
        return self

    def login(self, user, password, features, mechanism="PLAIN", binding=None):
        """SASL and resource binding; returns the full JID. `binding` is (type, data) for SCRAM-*-PLUS."""
        expect(f">{mechanism}<" in features, f"no {mechanism} in {features}")
        answer = self.authenticate(user, password, mechanism, binding)
        expect("<success" in answer, f"{mechanism} as {user}: {answer}")
        features = self.open(self.host)
        self.send("<iq type='set' id='bind'><bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'/></iq>")
        self.jid = self.read(r"<jid>([^<]+)</jid>").group(1)
        return self.jid

    def authenticate(self, user, password, mechanism="PLAIN", binding=None, flag="n"):
        """One SASL exchange; returns the server's last element. `flag` "y": the client knows channel binding
        but was offered none (RFC 5802, section 6)."""
        if mechanism == "PLAIN":
            return self._sasl("auth", f"\0{user}\0{password}", mechanism)
        digest = HASHES[mechanism.removesuffix("-PLUS")]
        gs2 = f"p={binding[0]},," if binding else f"{flag},,"
        nonce = secrets.token_hex(12)
        bare = f"n={user},r={nonce}"
        answer = self._sasl("auth", gs2 + bare, mechanism)
        if "<challenge" not in answer:
            return answer
        first = base64.b64decode(re.search(r">([^<]+)<", answer).group(1)).decode()
        part = dict(piece.split("=", 1) for piece in first.split(","))
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(part["s"]), int(part["i"]))
        key = hmac.digest(salted, b"Client Key", digest)
        bound = base64.b64encode(gs2.encode() + (binding[1] if binding else b"")).decode()
        final = f"c={bound},r={part['r']}"
        signed = hmac.digest(hashlib.new(digest, key).digest(), f"{bare},{first},{final}".encode(), digest)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signed))).decode()
        return self._sasl("response", f"{final},p={proof}")

    def _sasl(self, element, text, mechanism=None):
        attribute = f" mechanism='{mechanism}'" if mechanism else ""
        payload = base64.b64encode(text.encode()).decode()
        self.send(f"<{element} xmlns='urn:ietf:params:xml:ns:xmpp-sasl'{attribute}>{payload}</{element}>")
        return self.read(r"<(challenge|success|failure)[^>]*?(/>|>.*?</\1>)").group()

    def close(self):
        """Ends the stream as a client should, and waits for the server to do the same."""
        self.send("</stream:stream>")
        return self.read_end()


def login(server, number, mode="starttls", user="alice", source=None, **tls):
    """A user of a `servers.Server` who is logged in through the proxy's port: the open stream."""
    stream = Stream(number, source=source)
    if mode == "starttls":
        stream.open(server.host)
        stream.starttls()
    else:
        stream.tls(server.host, **tls)
    stream.login(user, "secret1", stream.open(server.host))
    return stream


class _Exporter:
    """The part of a socket that `Stream` uses, over a pyOpenSSL connection."""

    def __init__(self, sock, name, alpn, wait):
        try:
            from OpenSSL import SSL
        except ImportError:
            raise Missing("pyOpenSSL (PyPI)") from None
        self._errors = SSL
        sock.settimeout(None)  # The kernel's own deadline instead: pyOpenSSL wants a blocking socket.
        seconds = int(wait).to_bytes(8, "little") + bytes(8)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        if alpn:
            context.set_alpn_protos([protocol.encode() for protocol in alpn])
        self.connection = SSL.Connection(context, sock)
        if name:
            self.connection.set_tlsext_host_name(name.encode())
        self.connection.set_connect_state()
        self.connection.do_handshake()
        self._socket = sock

    def binding(self, kind):
        """The channel binding data of a type."""
        if kind == "tls-exporter":
            return self.connection.export_keying_material(b"EXPORTER-Channel-Binding", 32, b"")
        shown = self.connection.get_peer_certificate().to_cryptography()
        # RFC 5929, 4.1: the certificate's own hash, but never less than SHA-256.
        weak = shown.signature_hash_algorithm is None or shown.signature_hash_algorithm.name in ("md5", "sha1")
        digest = "sha256" if weak else shown.signature_hash_algorithm.name
        from cryptography.hazmat.primitives.serialization import Encoding

        return hashlib.new(digest, shown.public_bytes(Encoding.DER)).digest()

    def sendall(self, data):
        self.connection.sendall(data)

    def recv(self, size):
        try:
            return self.connection.recv(size)
        except self._errors.WantReadError:
            raise TimeoutError from None
        except self._errors.ZeroReturnError:
            return b""
        except self._errors.SysCallError as error:
            if error.args[0] == -1:
                return b""
            raise ConnectionResetError(*error.args) from None

    def settimeout(self, _):
        pass

    def end_sending(self):
        """close_notify and FIN; the other direction stays."""
        self.connection.shutdown()
        self._socket.shutdown(socket.SHUT_WR)

    def close(self):
        self.connection.close()
        self._socket.close()
