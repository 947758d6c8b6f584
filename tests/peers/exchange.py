#!/usr/bin/env python3
"""Two slixmpp users log in over Direct TLS, and each gets the other's message.

    exchange.py PORT TEXT

Prints what happened; exit code 0 when both messages arrived as sent. chat.py runs it in a process of
its own, since slixmpp wants the event loop to itself.
"""

import asyncio
import sys

import slixmpp

PORT, TEXT = int(sys.argv[1]), sys.argv[2]


class User(slixmpp.ClientXMPP):
    """One user; `online` and `heard` are futures."""

    def __init__(self, name):
        super().__init__(f"{name}@chat.test", "secret1")
        loop = asyncio.get_running_loop()
        self.online, self.heard = loop.create_future(), loop.create_future()
        self.ssl_context.load_verify_locations(sys.argv[3])
        self.enable_direct_tls, self.enable_starttls, self.enable_plaintext = True, False, False
        self.register_plugin("xep_0198")
        self.register_plugin("xep_0199")
        self.add_event_handler("session_start", self._started)
        self.add_event_handler("message", self._message)
        for name_of_end in ("failed_all_auth", "connection_failed", "stream_error"):
            self.add_event_handler(name_of_end, lambda event, n=name_of_end: self._ended(n, event))

    async def _started(self, _):
        await self.get_roster()
        self.send_presence()
        await self.plugin["xep_0199"].ping(self.boundjid.domain, timeout=5)
        self.online.set_result(self.boundjid.full)

    def _message(self, message):
        if message["body"] and not self.heard.done():
            self.heard.set_result((message["from"].bare, message["body"]))

    def _ended(self, why, event):
        for future in (self.online, self.heard):
            if not future.done():
                future.set_exception(RuntimeError(f"{self.boundjid.bare}: {why} {event}"))


async def main():
    alice, bob = User("alice"), User("bob")
    for user in (alice, bob):
        user.connect("127.0.0.1", PORT)
    for user in (alice, bob):
        print("online:", await asyncio.wait_for(user.online, 15), flush=True)
    for sender, receiver in ((alice, bob), (bob, alice)):
        text = f"{TEXT} from {sender.boundjid.user}"
        sender.send_message(mto=receiver.boundjid.full, mbody=text, mtype="chat")
        heard = await asyncio.wait_for(receiver.heard, 10)
        assert heard == (sender.boundjid.bare, text), f"heard {heard}"
        print("heard:", text[:60], len(text), flush=True)
    for user in (alice, bob):
        await user.disconnect(wait=2)


asyncio.run(main())
