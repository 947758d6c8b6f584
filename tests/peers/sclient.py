"""openssl s_client as a client that is driven line by line."""

import re

from harness import expect



class Client:
    """One s_client connection through the proxy to an echo backend."""

    def __init__(self, scope, port, *flags, host="127.0.0.1"):
        self.process = scope.start("openssl", "s_client", "-connect", f"{host}:{port}", *flags)
        self._number = 0

    def echo(self):
        """Sends a line and waits until it comes back: both directions work."""
        self._number += 1
        line = f"echo number {self._number} from the client"
        seen = len(self.text)
        self.process.send(line + "\n")
        self.process.wait_for(re.escape(line), after=seen)
        return self

    def command(self, letter):
        """One of s_client's own commands: a letter alone on a line."""
        self.process.send(letter + "\n")

    def close(self):
        """Ends the connection with close_notify; returns the exit code."""
        self.command("Q")
        return self.process.wait()

    @property
    def text(self):
        return self.process.text

    def fact(self, pattern):
        """What the first group of `pattern` holds in the output."""
        found = re.search(pattern, self.text)
        expect(found, f"no {pattern!r} in the output of s_client:\n{self.text[-3000:]}")
        return found.group(1)

    @property
    def suite(self):
        return self.fact(r"Cipher is (\S+)")

    @property
    def version(self):
        return self.fact(r"(?:New|Reused), (TLSv[\d.]+)")

    @property
    def serial(self):
        """A text that differs between certificates: the PEM body that the server showed."""
        return self.fact(r"-----BEGIN CERTIFICATE-----\s+([^-]+)-----END").strip()


def refused(scope, port, *flags):
    """Connects, expects the handshake to fail, and returns what s_client says of the alert."""
    code, text = scope.run("openssl", "s_client", "-connect", f"127.0.0.1:{port}", *flags, wait=15)
    expect(code != 0, f"s_client {' '.join(flags)} was not refused:\n{text[-1500:]}")
    alerts = [line for line in text.splitlines() if "alert" in line]
    return alerts[0] if alerts else text
