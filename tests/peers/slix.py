#!/usr/bin/env python3
"""Users with slixmpp, in a process of its own, since slixmpp wants the event loop to itself.

    slix.py talk   DOMAIN PORT starttls|direct CA [SIZE]
    slix.py resume DOMAIN PORT starttls|direct CA

`talk`: alice and bob log in, get their rosters and exchange messages; alice publishes an avatar that is SIZE
bytes on the wire, and fetches it. `resume`: alice logs in and prints what becomes of her stream, one event a
line; the line "again" on standard input makes her connect again, any other is the end. Exit code 0 when all
went well. From the environment: PEERS_SOURCE, the address to come from, and PEERS_TLS, the only
version to speak, 1.2 or 1.3.
"""

import asyncio
import functools
import os
import ssl
import sys

import slixmpp
from slixmpp.exceptions import XMPPError

WHAT, DOMAIN, PORT, MODE, CA = sys.argv[1:6]
SIZE = int(sys.argv[6]) if len(sys.argv) > 6 else 0
PASSWORD = "secret1"


class User(slixmpp.ClientXMPP):
    """One user; `online` is a future, `heard` a queue of (sender, text)."""

    def __init__(self, name):
        super().__init__(f"{name}@{DOMAIN}/{os.urandom(4).hex()}", PASSWORD)
        self.online, self.heard = asyncio.get_running_loop().create_future(), asyncio.Queue()
        self.ssl_context.load_verify_locations(CA)
        self.enable_direct_tls, self.enable_starttls = MODE == "direct", MODE == "starttls"
        self.enable_plaintext = False
        if only := {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}.get(os.environ.get("PEERS_TLS")):
            self.ssl_context.minimum_version = self.ssl_context.maximum_version = only
        for plugin in ("xep_0030", "xep_0060", "xep_0084", "xep_0163", "xep_0198", "xep_0199"):
            self.register_plugin(plugin)
        self.add_event_handler("session_start", self._started)
        self.add_event_handler("message", self._message)
        for name_of_end in ("failed_all_auth", "connection_failed", "stream_error"):
            self.add_event_handler(name_of_end, functools.partial(self._ended, name_of_end))

    async def _started(self, _):
        try:
            await self.get_roster()
            self.send_presence()
            await self.plugin["xep_0199"].ping(self.boundjid.domain, timeout=5)
        except (XMPPError, asyncio.TimeoutError) as error:
            return self._ended("roster or ping", error)
        if not self.online.done():
            self.online.set_result(self.boundjid.full)

    def _message(self, message):
        if message["body"]:
            self.heard.put_nowait((message["from"].bare, message["body"]))

    def _ended(self, why, event):
        if not self.online.done():
            self.online.set_exception(RuntimeError(f"{self.boundjid.bare}: {why} {event}"))


async def hears(user, sender, text):
    while await asyncio.wait_for(user.heard.get(), 10) != (sender.boundjid.bare, text):
        pass  # Something left over from another check.


async def talk():
    alice, bob = User("alice"), User("bob")
    for user in (alice, bob):
        user.connect("127.0.0.1", PORT)
    for user in (alice, bob):
        print("online:", await asyncio.wait_for(user.online, 15), flush=True)
    for text in (f"grüße 👋 {os.urandom(4).hex()}", "long " + "0123456789" * 6000):
        for sender, receiver in ((alice, bob), (bob, alice)):
            sender.send_message(mto=receiver.boundjid.full, mbody=text, mtype="chat")
            await hears(receiver, sender, text)
            print("heard:", text[:60], len(text), flush=True)
    if SIZE:
        # Base64 makes it a third longer on the way.
        avatar = os.urandom(SIZE * 3 // 4)
        published = alice.plugin["xep_0084"].publish_avatar(avatar)
        await asyncio.wait_for(published, 10)
        item = alice.plugin["xep_0084"].generate_id(avatar)
        answer = await alice.plugin["xep_0084"].retrieve_avatar(alice.boundjid.bare, item, timeout=10)
        fetched = answer["pubsub"]["items"]["item"]["avatar_data"]["value"]
        assert fetched == avatar, f"fetched {len(fetched)} bytes, published {len(avatar)}"
        print("avatar:", len(fetched), flush=True)
    for user in (alice, bob):
        await user.disconnect(wait=2)


async def resume():
    alice = User("alice")
    orders = asyncio.Queue()
    asyncio.get_running_loop().add_reader(0, lambda: orders.put_nowait(sys.stdin.readline().strip()))
    for name in ("session_start", "sm_enabled", "session_resumed", "sm_failed", "disconnected"):
        alice.add_event_handler(name, lambda _, name=name: print("event:", name, flush=True))
    alice.connect("127.0.0.1", PORT)
    while await orders.get() == "again":
        alice.connect("127.0.0.1", PORT)
    await alice.disconnect(wait=2)


async def main():
    if source := os.environ.get("PEERS_SOURCE"):
        loop = asyncio.get_running_loop()
        loop.create_connection = functools.partial(loop.create_connection, local_addr=(source, 0))
    await {"talk": talk, "resume": resume}[WHAT]()


asyncio.run(main())
