"""Two servers that federate through Vestibule: Prosody with chat.test, ejabberd with other.test."""

import re
import uuid

import servers
from chat import BOTH, each_server
from fronts import front
from harness import check, expect
from proxying import ssl_tlv, v2
from servers import PASSWORD
from xmpp import Stream


def federate(services):
    """A message each way between alice@chat.test and alice@other.test, whose servers find each other by `services`,
    ports by the names that DNS has for them. Returns what each server logged. The users are logged in past the
    proxy: only what the servers say to each other is of interest."""
    pair = each_server()
    names = servers.names().services
    names.clear()
    names.update(services)
    marks = [server.mark() for server in pair]
    users = []
    for server in pair:
        user = Stream(server.doors["c2s"], v2(tlvs=ssl_tlv()), wait=20)
        user.login("alice", PASSWORD, user.open(server.host))
        user.send("<presence/>")
        users.append(user)
    try:
        for sender, receiver, server in ((*users, pair[1]), (*reversed(users), pair[0])):
            text = f"federated {uuid.uuid4()}"
            sender.send(f"<message to='alice@{server.host}' type='chat'><body>{text}</body></message>")
            receiver.read(re.escape(text))
    except Exception as failed:
        logs = "\n".join(f"---- {server.name}\n" + s2s_lines(mark()) for server, mark in zip(pair, marks))
        raise type(failed)(f"{failed}\n{logs}") from None
    finally:
        for user in users:
            user.close()
    return [mark() for mark in marks]


def s2s_lines(log):
    lines = [line for line in log.splitlines() if re.search("s2s|dialback|EXTERNAL|certificate", line)]
    return "\n".join(lines)[-6000:]


def everywhere(service, number):
    return {f"{service}._tcp.{server.host}": number for server in each_server()}


# What Prosody and ejabberd log when they have let the other in.
EXTERNAL = (
    "Accepting SASL EXTERNAL identity from other.test",
    "Accepted inbound s2s EXTERNAL authentication chat.test",
)
DIALBACK = ("authenticated for other.test", "Accepted inbound s2s dialback authentication chat.test")


@check("servers federate, passed through: each proves itself by its own certificate, SASL EXTERNAL", needs=BOTH)
def passed_through(scope):
    proxy = front(scope, *each_server(), kinds=("s2s",))
    logs = federate(everywhere("_xmpp-server", proxy.ports["s2s"]))
    for server, log, words in zip(each_server(), logs, EXTERNAL):
        expect(words in log, f"{server.name} has no {words!r}:\n{s2s_lines(log)}")


@check("servers federate by Direct TLS, passed through, SASL EXTERNAL", needs=BOTH)
def passed_through_direct(scope):
    services = {}
    # Prosody cannot take a PROXY header in front of a TLS handshake.
    for server, header in zip(each_server(), ("off", "v2")):
        proxy = front(scope, server.doors["s2s_tls"], kinds=("s2s_direct",), proxy_protocol=header)
        services[f"_xmpps-server._tcp.{server.host}"] = proxy.ports["s2s_direct"]
    for server, log, words in zip(each_server(), federate(services), EXTERNAL):
        expect(words in log, f"{server.name} has no {words!r}:\n{s2s_lines(log)}")


@check("servers federate, decrypted by Vestibule: dialback, by STARTTLS and by Direct TLS", needs=BOTH)
def decrypted(scope):
    trust = servers.authority()
    pairs = []
    for server in each_server():
        pairs += ["--cert", trust / f"{server.host}.cert.pem", "--key", trust / f"{server.host}.key.pem"]
    for kind, service in (("s2s", "_xmpp-server"), ("s2s_direct", "_xmpps-server")):
        proxy = front(scope, *each_server(), kinds=(kind,), listener='tls = "terminate"', flags=pairs, cert=None)
        logs = federate(everywhere(service, proxy.ports[kind]))
        for server, log, words in zip(each_server(), logs, DIALBACK):
            expect(words in log, f"{server.name} has no {words!r}:\n{s2s_lines(log)}")
            expect(not re.search("Accept(ed|ing) .*EXTERNAL", log), f"{server.name}: EXTERNAL:\n{s2s_lines(log)}")
        proxy.process.end()
