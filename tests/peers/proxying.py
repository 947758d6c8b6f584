"""The PROXY header on the way to Prosody and ejabberd, and mod_vestibule, which reads it in Prosody."""

import hashlib
import secrets
import socket
import struct

import servers
from harness import check, expect, expect_in
from servers import PASSWORD
from xmpp import Stream, header

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
CLIENT, CLIENT6, THERE = "203.0.113.7", "2001:db8::7", "192.0.2.1"


def tlv(kind, value):
    return struct.pack(">BH", kind, len(value)) + value


def ssl_tlv(client=1):
    parts = tlv(0x21, b"TLSv1.3") + tlv(0x23, b"TLS_AES_128_GCM_SHA256")
    return tlv(0x20, bytes([client]) + struct.pack(">I", 1) + parts)


def v1(source=CLIENT, there=THERE, port=40001):
    family = "TCP6" if ":" in source else "TCP4"
    return f"PROXY {family} {source} {there} {port} 5222\r\n".encode()


def v2(source=CLIENT, port=40001, tlvs=b"", command=1, checksum=None):
    """A version 2 header; `checksum` True adds a right CRC32C, False a wrong one."""
    family, there = (socket.AF_INET6, "2001:db8::1") if ":" in source else (socket.AF_INET, THERE)
    body = socket.inet_pton(family, source) + socket.inet_pton(family, there) + struct.pack(">HH", port, 5222)
    if checksum is not None:
        tlvs = tlv(3, bytes(4)) + tlvs
    head = SIGNATURE + bytes([0x20 | command, 0x21 if ":" in source else 0x11])
    whole = head + struct.pack(">H", len(body) + len(tlvs)) + body + tlvs
    if checksum is not None:
        at = len(head) + 2 + len(body) + 3
        whole = whole[:at] + struct.pack(">I", crc32c(whole) ^ (not checksum)) + whole[at + 4:]
    return whole


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@check("mod_vestibule: an address from a PROXY header, TLS as it says, login and log line", needs=("root", "prosody"))
def module_accepts(scope):
    server = servers.prosody()
    secure = ssl_tlv() + tlv(1, b"xmpp-client") + tlv(2, b"chat.test") + tlv(5, b"conn-000001")
    for name, first, address in (
        ("v2, IPv4", v2(tlvs=secure), CLIENT),
        ("v2, IPv6, right checksum", v2(CLIENT6, tlvs=secure, checksum=True), CLIENT6),
        ("v2, long", v2(tlvs=tlv(4, bytes(1500)) + secure), CLIENT),
        ("v1, IPv4", v1(), CLIENT),
        ("v1, IPv6", v1(CLIENT6, "2001:db8::1"), CLIENT6),
    ):
        since = server.mark()
        with Stream(server.doors["c2s"], first) as stream:
            features = stream.open("chat.test")
            expect("starttls" not in features, f"{name}: STARTTLS inside TLS: {features}")
            expect_in("alice@chat.test/", stream.login("alice", PASSWORD, features), name)
            expect_in("<failure", failed_login(server, first), name)
            id_of_connection = "conn-000001" if "v2" in name else "no id"
            server.wait_log(since, rf"Client is {address} port 40001.*{id_of_connection}.*over TLS")
            server.wait_log(since, rf"Failed login from {address} port 40001 \(not-authorized\)")


def failed_login(server, first):
    with Stream(server.doors["c2s"], first) as stream:
        stream.open("chat.test")
        return stream.authenticate("alice", "wrong")


@check(
    "mod_vestibule: without word of TLS no login is offered, but Prosody's own STARTTLS",
    needs=("root", "prosody"),
)
def module_plain(scope):
    server = servers.prosody()
    for first in (v2(), v2(CLIENT6), v2(tlvs=ssl_tlv(client=0))):
        with Stream(server.doors["c2s"], first) as stream:
            features = stream.open("chat.test")
            expect_in("<starttls", features, f"features after {first}")
            expect("PLAIN" not in features, f"login offered in the clear: {features}")
    with Stream(server.doors["c2s"], v2()) as stream:
        stream.open("chat.test")
        stream.starttls()
        stream.login("alice", PASSWORD, stream.open("chat.test"))


@check(
    "mod_vestibule: a header in pieces is waited for; a bad one, and none, end the connection",
    needs=("root", "prosody"),
)
def module_refuses(scope):
    server = servers.prosody()
    for first in (v1() + header("chat.test").encode(), v2(tlvs=ssl_tlv()) + header("chat.test").encode()):
        with Stream(server.doors["c2s"]) as stream:
            for byte in range(len(first)):
                stream.send(first[byte:byte + 1])
            stream.read("<stream:features>")
    good = v2()
    for name, first in {
        "LOCAL": v2(command=0),
        "LOCAL without addresses": SIGNATURE + b"\x20\0\0\0",
        "UNKNOWN": b"PROXY UNKNOWN\r\n",
        "no header": header("chat.test").encode(),
        "wrong checksum": v2(checksum=False),
        "TLV over the end": v2(tlvs=b"\x04\0\x09abc"),
        "cut TLV": v2(tlvs=b"\x04\0"),
        "UDP": good[:13] + b"\x12" + good[14:],
        "version 3": good[:12] + b"\x31" + good[13:],
        "short body": SIGNATURE + b"\x21\x11\0\x04" + bytes(4),
        "64 kB body": SIGNATURE + b"\x21\x11\xff\xff",
        "endless line": b"PROXY TCP4 " + b"1" * 200,
        "port 65536": v1(port=65536),
        "IPv6 address as IPv4": f"PROXY TCP4 {CLIENT6} {THERE} 1 2\r\n".encode(),
        "TLS": b"\x16\x03\x01\x02\0\x01",
    }.items():
        with Stream(server.doors["c2s"], first) as stream:
            answer = stream.read_end()
            expect("<stream" not in answer, f"{name}: answered {answer}")
    with Stream(server.doors["c2s"], b"PROXY TCP4") as stream:
        stream.read_end(wait=3)  # At the module's own deadline.
    since = server.mark()
    with Stream(server.doors["c2s"], v1(), source="127.0.0.5") as stream:
        stream.read_end()
    server.wait_log(since, "127.0.0.5 refused: not in vestibule_trusted_proxies")


@check(
    "mod_vestibule: server streams: dialback when decrypted, else Prosody's own STARTTLS",
    needs=("root", "prosody"),
)
def module_servers(scope):
    server = servers.prosody()
    hello = " xmlns:db='jabber:server:dialback' from='other.test'"
    for first, offered, absent in ((v2(tlvs=ssl_tlv()), "dialback", "starttls"), (v2(), "starttls", "mechanisms")):
        with Stream(server.doors["s2s"], first) as stream:
            features = stream.open("chat.test", "jabber:server", hello)
            expect_in(offered, features, "features")
            expect(absent not in features, f"{absent} in {features}")


@check(
    "mod_vestibule: SCRAM-PLUS with tls-exporter and tls-server-end-point, and no other binding",
    needs=("root", "prosody"),
)
def module_binding(scope):
    server = servers.prosody()
    exported, shown = secrets.token_bytes(32), hashlib.sha256(b"certificate").digest()
    first = v2(tlvs=ssl_tlv() + tlv(0xE0, exported) + tlv(0xE1, shown))
    mechanism = "SCRAM-SHA-256-PLUS"

    def attempt(*binding):
        with Stream(server.doors["c2s"], first) as stream:
            features = stream.open("chat.test")
            expect_in("<channel-binding type='tls-exporter'/>", features, "XEP-0440")
            expect_in("<channel-binding type='tls-server-end-point'/>", features, "XEP-0440")
            expect_in(f">{mechanism}<", features, "mechanisms")
            return stream.authenticate("alice", PASSWORD, mechanism, binding)

    expect_in("<success", attempt("tls-exporter", exported), "tls-exporter")
    expect_in("<success", attempt("tls-server-end-point", shown), "tls-server-end-point")
    expect_in("<failure", attempt("tls-exporter", secrets.token_bytes(32)), "another connection's binding")
    expect_in("<failure", attempt("tls-unique", exported), "tls-unique")
    # After a failure, and after an abort, the same stream still knows its binding.
    with Stream(server.doors["c2s"], first) as stream:
        features = stream.open("chat.test")
        stream.authenticate("alice", PASSWORD, mechanism, ("tls-exporter", bytes(32)))
        stream.send("<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='SCRAM-SHA-256-PLUS'/>")
        stream.read("<failure.*?</failure>")
        stream.send("<abort xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/>")
        stream.read("<aborted/>")
        stream.login("alice", PASSWORD, features, mechanism, ("tls-exporter", exported))
    # Nothing in the header, nothing offered.
    for tlvs in (ssl_tlv(), ssl_tlv(client=0) + tlv(0xE0, exported)):
        with Stream(server.doors["c2s"], v2(tlvs=tlvs)) as stream:
            features = stream.open("chat.test")
            expect("PLUS" not in features and "channel-binding" not in features, f"offered: {features}")


@check("ejabberd: each kind of PROXY header that has an address", needs=("root", "ejabberdctl"))
def ejabberd_accepts(scope):
    server = servers.ejabberd()
    facts = ssl_tlv() + tlv(1, b"xmpp-client") + tlv(2, b"other.test") + tlv(5, b"conn-000001")
    for first, address in (
        (v1(), CLIENT),
        (v1(CLIENT6, "2001:db8::1"), CLIENT6),
        (v2(), CLIENT),
        (v2(tlvs=facts, checksum=True), CLIENT),
        (v2(CLIENT6, tlvs=tlv(4, bytes(1500)) + facts), CLIENT6),
    ):
        since = server.mark()
        with Stream(server.doors["c2s"], first) as stream:
            stream.login("alice", PASSWORD, stream.open("other.test"))
        server.wait_log(since, f"Accepted c2s PLAIN authentication for alice@other.test .* from {address}")
