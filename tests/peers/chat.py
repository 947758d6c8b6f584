"""Prosody and ejabberd behind `xmpps`, with slixmpp and go-sendxmpp as their users' clients."""

import os
import pwd
import shutil
import sys
from pathlib import Path

from harness import CERTS, Missing, check, expect, expect_equal, expect_in, listening, port, until

HERE = Path(__file__).resolve().parent
PASSWORD = "secret1"
USERS = ("alice", "bob")


def owned(folder, user):
    """Gives a folder and all in it to the server's own user; returns how to run as that user."""
    entry = pwd.getpwnam(user)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, entry.pw_uid, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": folder}


def prosody(scope):
    """Starts Prosody with two users; returns its port."""
    folder, number = scope.folder(), port()
    (folder / "data").mkdir()
    config = folder / "prosody.cfg.lua"
    shutil.copy(HERE / "prosody.cfg.lua", config)
    environment = {**os.environ, "PEERS_STATE": str(folder), "PEERS_PORT": str(number)}
    who = {**owned(folder, "prosody"), "env": environment}
    for user in USERS:
        code, text = scope.run(
            "prosodyctl", "--config", config, "register", user, "chat.test", PASSWORD, **who
        )
        expect_equal(code, 0, f"prosodyctl register {user}: {text}")
    server = scope.start("prosody", "--config", config, "-F", **who)
    until(lambda: listening(number) or not server.running, "Prosody", wait=20)
    expect(server.running, f"Prosody ended:\n{server.text}")
    return number


def ejabberd(scope):
    """Starts ejabberd with two users; returns its port."""
    folder, number = scope.folder(), port()
    for name in ("spool", "logs"):
        (folder / name).mkdir()
    config = (HERE / "ejabberd.yml").read_text().replace("@PORT@", str(number))
    (folder / "ejabberd.yml").write_text(config)
    (folder / "inetrc").write_text("")
    node = f"vestibule{number}@localhost"
    # A port mapper of its own, on loopback, that is ended with the check.
    mapper = port()
    (folder / "ejabberdctl.cfg").write_text(
        f"ERLANG_NODE={node}\nINET_DIST_INTERFACE=127.0.0.1\nERL_EPMD_ADDRESS=127.0.0.1\n"
        f"export ERL_EPMD_PORT={mapper}\n"
    )
    environment = {
        **os.environ, "HOME": str(folder), "ERL_EPMD_PORT": str(mapper), "ERL_EPMD_ADDRESS": "127.0.0.1"
    }
    who = {**owned(folder, "ejabberd"), "env": environment}
    control = (
        "ejabberdctl", "--config-dir", folder, "--config", folder / "ejabberd.yml",
        "--ctl-config", folder / "ejabberdctl.cfg", "--logs", folder / "logs",
        "--spool", folder / "spool", "--node", node,
    )
    epmd = shutil.which("epmd") or "/usr/bin/epmd"
    scope.start(epmd, "-address", "127.0.0.1", "-port", mapper, **who)
    until(lambda: listening(mapper), "epmd")
    server = scope.start(*control, "foreground", **who)

    def stop():
        if server.running:
            scope.run(*control, "stop", **who)
            server.wait(20)

    scope.callback(stop)
    until(lambda: listening(number) or not server.running, "ejabberd", wait=60)
    expect(server.running, f"ejabberd ended:\n{server.text}")
    for user in USERS:
        code, text = scope.run(*control, "register", user, "chat.test", PASSWORD, **who)
        expect_equal(code, 0, f"ejabberdctl register {user}: {text}")
    return number


def front_of(scope, backend):
    front = port()
    scope.vestibule("--forward", f"xmpps://127.0.0.1:{front}=127.0.0.1:{backend}")
    return front


def exchange(scope, front):
    """slixmpp: two users, a message each way; a small one and one of many records."""
    for text in ("grüße 👋", "long " + "0123456789" * 6000):
        code, out = scope.run(
            sys.executable, HERE / "exchange.py", front, text, CERTS / "ecdsa.cert.pem", wait=60
        )
        if "No module named 'slixmpp'" in out:
            raise Missing("slixmpp (PyPI)")
        expect_equal(code, 0, f"slixmpp: {out[-3000:]}")
        expect_equal(out.count("heard:"), 2, f"messages that arrived: {out[-3000:]}")


def sendxmpp(scope, front):
    """go-sendxmpp: one listens, the other sends."""
    login = ("-t", "-n", "-p", PASSWORD, "-j", f"127.0.0.1:{front}")
    text = "sent by go-sendxmpp through the front door"
    listener = scope.start("go-sendxmpp", *login, "-d", "-u", "bob@chat.test", "-l")
    # Its debug output shows the stream: once the presence is out, messages reach it.
    listener.wait_for("<presence", wait=20)
    code, out = scope.run(
        "sh", "-c", 'printf "%s\\n" "$0" | go-sendxmpp "$@"', text,
        *login, "-u", "alice@chat.test", "bob@chat.test", wait=30,
    )
    expect_equal(code, 0, f"go-sendxmpp as sender: {out[-2000:]}")
    listener.wait_for(text, wait=15)
    expect_in("alice@chat.test", listener.text, "the sender of the message")


@check("Prosody: slixmpp users log in by Direct TLS and talk", needs=("root", "prosody", "prosodyctl"))
def prosody_slixmpp(scope):
    exchange(scope, front_of(scope, prosody(scope)))


@check("Prosody: go-sendxmpp sends and receives", needs=("root", "prosody", "go-sendxmpp"))
def prosody_sendxmpp(scope):
    sendxmpp(scope, front_of(scope, prosody(scope)))


@check("ejabberd: slixmpp and go-sendxmpp users talk", needs=("root", "ejabberdctl", "go-sendxmpp"))
def ejabberd_both(scope):
    front = front_of(scope, ejabberd(scope))
    exchange(scope, front)
    sendxmpp(scope, front)
