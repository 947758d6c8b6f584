#!/usr/bin/env python3
"""Tables and pictures from what tests/bench/run has measured.

    tests/bench/report.py RESULTS.jsonl [--plots FOLDER]
"""

import argparse
import json
import os
import platform
import re
import statistics
from dataclasses import dataclass
from pathlib import Path

from plot import bars

PACED = 5000  # messages a second, over however many connections
PACED_HTTP = 1500


@dataclass
class Scenario:
    """`load`: command and arguments of the load generator; `quick`: what replaces some of them to see that it works."""
    mode: str
    load: str
    quick: str = "--seconds 0.5 --warmup 0.1"

    def arguments(self, quick):
        words = self.load.split()
        given = dict(zip(words[1::2], words[2::2]))
        if quick:
            given |= dict(zip(self.quick.split()[::2], self.quick.split()[1::2]))
        return [words[0], *(part for flag, value in given.items() for part in (flag, *([value] if value != "yes" else [])))]


SCENARIOS = {
    "idle-tcp": Scenario("tcp", "idle --mode tcp --conns 5000", "--conns 50 --settle 0.2 --hold 0.2"),
    "idle-web": Scenario("web", "idle --mode web --conns 5000", "--conns 50 --settle 0.2 --hold 0.2"),
    "chat-2000": Scenario("web", "chat --users 2000 --warmup 3 --seconds 15", "--users 50 --warmup 0.5 --seconds 1"),
    "chat-5000": Scenario("web", "chat --users 5000 --warmup 3 --seconds 15", "--users 50 --warmup 0.5 --seconds 1"),
    "echo-tcp": Scenario("tcp", "echo --mode tcp --conns 64"),
    "echo-web": Scenario("web", "echo --mode web --conns 64"),
    "http": Scenario("web", "http --conns 64"),
    "handshake-full": Scenario("web", "handshake --conns 16"),
    "handshake-resumed": Scenario("web", "handshake --conns 16 --resume yes"),
    "bulk-1": Scenario("tcp", "bulk --mode tcp --conns 1 --gib 2", "--gib 0.02"),
    "bulk-16": Scenario("tcp", "bulk --mode tcp --conns 16 --gib 2", "--gib 0.02"),
    "paced-100": Scenario("tcp", f"echo --mode tcp --conns 100 --rate {PACED} --seconds 8"),
    "paced-1000": Scenario("tcp", f"echo --mode tcp --conns 1000 --rate {PACED} --seconds 8"),
    "paced-8000": Scenario("tcp", f"echo --mode tcp --conns 8000 --rate {PACED} --seconds 8",
                           "--conns 100 --seconds 0.5 --warmup 0.1"),
    "paced-http": Scenario("web", f"http --conns 64 --rate {PACED_HTTP} --seconds 8"),
}


@dataclass
class Measure:
    scenario: str
    title: str
    key: str  # a path into the result, with dots
    digits: int = 1
    scale: float = 1
    more: bool = False  # more is better
    plot: bool = False

    def of(self, result):
        for part in self.key.split("."):
            result = result.get(part) if result else None
        return None if result is None else result * self.scale

    def text(self, value):
        return f"{value:,.{self.digits}f}"


MS = 1 / 1000
MIB = 1 / 1024
GROUPS = {
    "Memory of silent connections (5,000)": [
        Measure("idle-tcp", "bytes: KiB for each", "kib_per_conn", plot=True),
        Measure("idle-tcp", "bytes: KiB for each, a second after a burst", "kib_per_conn_after_burst"),
        Measure("idle-web", "WebSocket: KiB for each", "kib_per_conn", plot=True),
        Measure("idle-web", "WebSocket: KiB for each, a second after a burst", "kib_per_conn_after_burst", plot=True),
    ],
    "Chat over WebSocket": [
        Measure("chat-2000", "2,000 users: CPU-µs for a delivery", "cpu_us", plot=True),
        Measure("chat-2000", "2,000 users: p50, ms", "us.p50", scale=MS),
        Measure("chat-2000", "2,000 users: p99, ms", "us.p99", scale=MS),
        Measure("chat-2000", "2,000 users: memory, MiB", "pss_kib", scale=MIB, plot=True),
        Measure("chat-5000", "5,000 users (saturated): CPU-µs for a delivery", "cpu_us"),
        Measure("chat-5000", "5,000 users (saturated): deliveries a second", "per_second", digits=0, more=True),
        Measure("chat-5000", "5,000 users (saturated): memory, MiB", "pss_kib", scale=MIB),
    ],
    "Small messages and requests (64 connections, as fast as it goes)": [
        Measure("echo-tcp", "echo of 50 bytes: CPU-µs", "cpu_us", plot=True),
        Measure("echo-tcp", "echo of 50 bytes: a second", "per_second", digits=0, more=True),
        Measure("echo-web", "echo over WebSocket: CPU-µs", "cpu_us"),
        Measure("echo-web", "echo over WebSocket: a second", "per_second", digits=0, more=True),
        Measure("http", "GET of 100 bytes, HTTP/1.1: CPU-µs", "cpu_us", plot=True),
        Measure("http", "GET of 100 bytes, HTTP/1.1: a second", "per_second", digits=0, more=True),
    ],
    "Handshakes (TLS 1.3, P-256 certificate, X25519)": [
        Measure("handshake-full", "full: CPU-µs", "cpu_us", digits=0, plot=True),
        Measure("handshake-resumed", "resumed: CPU-µs", "cpu_us", digits=0, plot=True),
        Measure("handshake-resumed", "resumed: of those that asked, %", "resumed_percent", digits=0, more=True),
    ],
    "Bulk, bytes": [
        Measure("bulk-1", "down, 1 connection: CPU-s for a GiB", "down.cpu_s_per_gib", digits=2, plot=True),
        Measure("bulk-1", "up, 1 connection: CPU-s for a GiB", "up.cpu_s_per_gib", digits=2, plot=True),
        Measure("bulk-16", "down, 16 connections: CPU-s for a GiB", "down.cpu_s_per_gib", digits=2, plot=True),
        Measure("bulk-16", "up, 16 connections: CPU-s for a GiB", "up.cpu_s_per_gib", digits=2, plot=True),
        Measure("bulk-16", "down, 16 connections: MiB/s", "down.mib_per_second", digits=0, more=True),
        Measure("bulk-16", "up, 16 connections: MiB/s", "up.mib_per_second", digits=0, more=True),
    ],
    f"Growth: {PACED:,} messages a second, over more and more connections": [
        Measure("paced-100", "100 connections: CPU-µs for a message", "cpu_us", plot=True),
        Measure("paced-1000", "1,000 connections: CPU-µs for a message", "cpu_us"),
        Measure("paced-8000", "8,000 connections: CPU-µs for a message", "cpu_us", plot=True),
    ],
    f"Latency at a load below saturation ({PACED:,} messages a second over 1,000 connections; {PACED_HTTP:,} requests over 64)": [
        measure
        for scenario, what in (("paced-1000", "message"), ("paced-http", "request"))
        for measure in (
            *(Measure(scenario, f"{what}: {name}, ms", f"us.{key}", digits=2, scale=MS)
              for name, key in (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p99.9", "p999"))),
            Measure(scenario, f"{what}: CPU-µs", "cpu_us"))
    ],
}


def machine():
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    system = re.search(r'^PRETTY_NAME="?(.*?)"?$', Path("/etc/os-release").read_text(), re.M)
    return (f"{os.cpu_count()} CPUs ({cpu[1] if cpu else platform.machine()}), Linux {platform.release()}, "
            f"{system[1] if system else ''}")


def faults(row):
    return [f"{key} {row[key]}" for key in ("errors", "lost", "out_of_order") if row.get(key)]


class Results:
    def __init__(self, rows):
        self.machine, self.about, self.values, self.bad = [], {}, {}, {}
        for row in rows:
            if "machine" in row:
                self.machine = [*self.machine, row["machine"]] if row["machine"] not in self.machine else self.machine
                self.about |= row["peers"]
            else:
                kept = self.bad if faults(row) else self.values
                kept.setdefault((row["peer"], row["kind"]), []).append(row)

    def medians(self, kinds):
        """Of how many runs the medians of these (peer, scenario) are."""
        runs = [len(self.values[kind]) for kind in kinds if kind in self.values]
        least, most = min(runs, default=0), max(runs, default=0)
        if most == 1:
            return "One run of each"
        return f"Medians of {most} runs" if least == most else f"Medians of {least} to {most} runs"

    def spread(self, peer, measure):
        """Least, median and most; None where there is none, or where a run had errors."""
        if (peer, measure.scenario) in self.bad:
            return None
        values = [measure.of(row) for row in self.values.get((peer, measure.scenario), [])]
        values = [value for value in values if value is not None]
        return (min(values), statistics.median(values), max(values)) if values else None


def table(results, measures, peers):
    """Markdown with a row for each measure; without peers and measures that have no figures."""
    lines = []
    seen = {(peer, measure.scenario) for measure in measures for peer in peers}
    peers = [peer for peer in peers if any(key in results.values or key in results.bad for key in seen if key[0] == peer)]
    for measure in measures:
        spreads = [results.spread(peer, measure) for peer in peers]
        known = [spread[1] for spread in spreads if spread]
        if not known:
            continue
        # Vestibule in another setting does not compete.
        others = [s[1] for peer, s in zip(peers, spreads) if s and not peer.startswith("vestibule-")]
        best = (max if measure.more else min)(others, default=None)
        cells = []
        for peer, spread in zip(peers, spreads):
            if not spread:
                cells.append("errors" if (peer, measure.scenario) in results.bad else "")
                continue
            low, middle, high = spread
            text = measure.text(middle)
            if middle == best and len(others) > 1 and not peer.startswith("vestibule-"):
                text = f"**{text}**"
            if high > low and middle:
                text += f" ±{50 * (high - low) / middle:.0f}%"
            cells.append(text)
        lines.append(f"| {measure.title} | {' | '.join(cells)} |")
    if not lines:
        return []
    return [f"| | {' | '.join(peers)} |", "|---|" + "--:|" * len(peers), *lines]


def report(rows, plots=None):
    results = Results(rows)
    peers = list(results.about)
    lines = [f"{'; '.join(results.machine)}. {results.medians(results.values)}, ± half the spread; the best is bold.", "",
             "| peer | version | settings |", "|---|---|---|"]
    lines += [f"| {peer} | {about['version']} | {about['settings']} |" for peer, about in results.about.items()]
    for title, measures in GROUPS.items():
        rows = table(results, measures, peers)
        if rows:
            lines += ["", f"### {title}", "", *rows]
    if results.bad:
        lines += ["", "Not compared, since a run had errors:", ""]
        for (peer, scenario), bad in results.bad.items():
            lines.append(f"- {scenario}, {peer}: " + "; ".join(
                f"{', '.join(faults(row))} ({row.get('first_error')})" for row in bad))
    noise = sorted(row["others_percent"] for rows in results.values.values() for row in rows if "others_percent" in row)
    if noise:
        lines += ["", f"Everything else on the machine took {statistics.median(noise):.0f} % of one CPU meanwhile (median; most "
                      f"{noise[-1]:.0f} %)."]
    if plots:
        draw(results, peers, Path(plots))
    return "\n".join(lines)


def draw(results, peers, folder):
    folder.mkdir(parents=True, exist_ok=True)
    shown = [peer for peer in peers if not peer.startswith("vestibule-")]
    names = iter(("memory", "chat", "messages", "handshakes", "bulk", "growth"))
    for (_, measures), name in zip(GROUPS.items(), names):
        panels, drawn = [], set()
        for measure in measures:
            spreads = [(peer, results.spread(peer, measure)) for peer in shown] if measure.plot else []
            values = [(peer, spread, peer == "vestibule", measure.text(spread[1])) for peer, spread in spreads if spread]
            if values:
                panels.append((measure.title, values))
                drawn |= {(peer, measure.scenario) for peer, *_ in values}
        if panels:
            there = [peer for peer in shown if any(peer == name for name, _ in drawn)]
            foot = [f"{'; '.join(results.machine)}. {results.medians(drawn)}; thin lines: from the least to the most.",
                    ", ".join(f"{peer} {results.about[peer]['version']}".strip() for peer in there)]
            bars(panels, foot, folder / f"{name}.svg")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--plots", metavar="FOLDER", help="draw SVG pictures")
    options = parser.parse_args()
    rows = [json.loads(line) for line in Path(options.results).read_text().splitlines()]
    print(report(rows, options.plots))


if __name__ == "__main__":
    main()
