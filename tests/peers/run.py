#!/usr/bin/env python3
"""Runs the real-peer tests: programs of other people against a Vestibule binary.

    tests/peers/run.py [--list] [TOPIC | TOPIC:PART-OF-TITLE]...

The binary is VESTIBULE, else the one in target/release or target/debug. One line per check, PASS or
FAIL with the reason; SKIP where a program is not installed (FAIL when CI is set). Exit code 0 when
nothing failed. Needs python3, and for some topics root: it says so.
"""

import importlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402

TOPICS = (
    "suites", "alerts", "backends", "web", "proxying", "chat", "streams", "federation", "lifecycle", "container",
    "hypertext", "websocket", "bosh", "floods", "smuggling",
)


def chosen(topic, title, wanted):
    if not wanted:
        return True
    pairs = (want.partition(":") for want in wanted)
    return any(topic == name and part in title for name, _, part in pairs)


def run(topic, title, needs, function):
    """Runs one check; returns its verdict and the reason."""
    try:
        harness.need(*needs)
        with harness.Scope() as scope:
            function(scope)
        return "PASS", ""
    except harness.Missing as missing:
        verdict = "FAIL" if os.environ.get("CI") else "SKIP"
        return verdict, f"not installed: {missing}"
    except harness.Failed as failed:
        return "FAIL", str(failed)
    except Exception:
        return "FAIL", traceback.format_exc()


def main(arguments):
    # Told to stop: leave through every open scope, so that nothing is left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted = [argument for argument in arguments if argument != "--list"]
    for topic in TOPICS:
        importlib.import_module(topic)
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    failures = []
    checks = [check for check in harness.CHECKS if chosen(check[0], check[1], wanted)]
    if "--list" in arguments:
        for topic, title, *_ in checks:
            print(f"{topic}: {title}")
        return 0
    try:
        for topic, title, needs, function in checks:
            started = time.monotonic()
            verdict, reason = run(topic, title, needs, function)
            counts[verdict] += 1
            print(f"{verdict} {topic}: {title} ({time.monotonic() - started:.1f} s)", flush=True)
            if reason:
                print(f"    {reason.splitlines()[0]}", flush=True)
            if verdict == "FAIL":
                failures.append(f"FAIL {topic}: {title}\n    {reason}")
    finally:
        harness.end_shared()
    if failures:
        print("\n---- in full:", *failures, sep="\n")
    print(f"peers: {counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped")
    ran = counts["PASS"] + counts["FAIL"]
    return 0 if ran and not counts["FAIL"] else 1



if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
