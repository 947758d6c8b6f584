#!/usr/bin/env python3
"""A network link with a real round-trip time, on one machine.

    tests/bench/link.py --rtt-ms 190 [--mbit 50] [--congestion cubic] -- COMMAND [ARG ...]

makes two network namespaces, runs COMMAND with LINK_SERVER_NS, LINK_CLIENT_NS, LINK_SERVER_IP and
LINK_CLIENT_IP in its environment, and removes both when COMMAND ends. A program runs at one end with
`ip netns exec $LINK_SERVER_NS PROGRAM`. Exit code: COMMAND's. Needs root, /dev/net/tun and iproute2.

Packets go through a pair of TUN devices and are held for half the round trip, because many kernels
come without netem. Both ends are the kernel's own TCP, so windows and their growth are as over an ocean.
"""

import argparse
import collections
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 1500
ADDRESS = {"server": "10.77.0.1", "client": "10.77.0.2"}
OTHER = {"server": "client", "client": "server"}


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def open_tun(name):
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return tun


def carry(source, sink, delay, rate, queue_bytes, stop, counts):
    """Moves packets one way: each leaves `delay` seconds after the link has had the time to send it."""
    waiting, queued, free_at = collections.deque(), 0, 0.0
    while not stop.is_set():
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            packet = waiting.popleft()[1]
            queued -= len(packet)
            try:
                os.write(sink, packet)
            except BlockingIOError:
                counts["dropped"] += 1
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.2
        if not select.select([source], [], [], timeout)[0]:
            continue
        # Not all that is there: what waits on the other side must leave in time.
        for _ in range(64):
            try:
                packet = os.read(source, MTU)
            except BlockingIOError:
                break
            if queued + len(packet) > queue_bytes:
                counts["dropped"] += 1
                continue
            now = time.monotonic()
            free_at = max(free_at, now) + (len(packet) / rate if rate else 0)
            waiting.append((free_at + delay, packet))
            queued += len(packet)
            counts["carried"] += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt-ms", type=float, required=True)
    parser.add_argument("--mbit", type=float, default=0, help="rate of the link each way; 0: none")
    parser.add_argument("--queue-kib", type=int, default=16384, help="bytes the link holds one way before it drops")
    parser.add_argument("--congestion", help="congestion control at both ends, instead of the machine's")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command")

    # So that a TERM leaves no namespace behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    namespace = {side: f"link{os.getpid()}-{side}" for side in ADDRESS}
    tuns, made, threads, status = {}, [], [], 1
    stop, counts = threading.Event(), {"carried": 0, "dropped": 0}
    child = None
    try:
        for side, name in namespace.items():
            ip("netns", "add", name)
            made.append(name)
            device = f"t{os.getpid()}{side[0]}"
            tuns[side] = open_tun(device)
            ip("link", "set", device, "netns", name)
            ip("-n", name, "addr", "add", ADDRESS[side], "peer", ADDRESS[OTHER[side]], "dev", device)
            ip("-n", name, "link", "set", device, "mtu", str(MTU), "txqueuelen", "10000", "up")
            ip("-n", name, "link", "set", "lo", "up")
            if options.congestion:
                # By route: a namespace may have another default only where the machine allows it to everybody.
                congestion = ("congctl", options.congestion)
                ip("-n", name, "route", "replace", ADDRESS[OTHER[side]], "dev", device, "src", ADDRESS[side], *congestion)
                ip("-n", name, "route", "replace", "table", "local", "local", "127.0.0.1", "dev", "lo", "scope", "host",
                   "src", "127.0.0.1", *congestion)
        for side in ADDRESS:
            args = (tuns[side], tuns[OTHER[side]], options.rtt_ms / 2000, options.mbit * 1e6 / 8,
                    options.queue_kib * 1024, stop, counts)
            threads.append(threading.Thread(target=carry, args=args, daemon=True))
            threads[-1].start()
        env = dict(os.environ)
        for side, name in namespace.items():
            env[f"LINK_{side.upper()}_NS"], env[f"LINK_{side.upper()}_IP"] = name, ADDRESS[side]
        child = subprocess.Popen(command, env=env)
        status = child.wait()
    except KeyboardInterrupt:
        status = 130
    finally:
        if child and child.poll() is None:
            # It has programs of its own to end.
            child.terminate()
            child.wait()
        stop.set()
        for thread in threads:
            thread.join()
        for tun in tuns.values():
            os.close(tun)
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)
        print(f"link: {counts['carried']} packets carried, {counts['dropped']} dropped", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
