"""What watching costs the packets: `monitor --all` and `capture` of 100,000 packets a second, and whether each is shown or counted.

    sudo python -m bench.observe [--seconds S]

A generator injects UDP packets of established flows at a client's veth device: 4,000 at a time, at 100,000 a second, from one CPU; the
agent's node forwards them and a backend counts them (as in wire.py). The command runs beside it and writes to /dev/null or a file. The cost of
a packet is the CPU time of its whole path, from bursts while the reader runs and bursts before, in turns of programs: without a
reader, with `monitor --all`, with `capture`.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness import pinned
from bench.wire import LIVE_FRAMES, Wire, manifest
from lbagent.kernel import bpf_prog
from tests.lab.agent import Agent
from tests.lab.netns import wait_for
from tests.lab.topology import Lab

RATE, CHUNK = 100_000, 4_000  # a run of the generator takes 25 ms, however few its packets are
FLOWS = 64
TURNS = 3  # of each variant
VARIANTS: dict[str, Sequence[str]] = {
    "no reader": (),
    "monitor --all": ("monitor", "--all", "-o", "json"),
    "capture": ("capture", "-w", "-"),
}
ENHANCED_PACKET = 6  # type of a pcapng block


class Reader:
    """A command that reads events, and what it wrote."""

    def __init__(self, agent: Agent, words: Sequence[str], out: Path) -> None:
        """Start it, and wait until its programs are in force."""
        self.out, self.err = out, out.with_suffix(".err")
        self.before = agent.api.status()["artifact"]
        with self.out.open("wb") as sink, self.err.open("wb") as said:
            self.process = agent.popen(*words, stdout=sink, stderr=said)
        wait_for(lambda: agent.api.status()["artifact"] != self.before, "the programs that record packets", 60)
        time.sleep(1)

    def end(self) -> tuple[bytes, str]:
        """Stop it as an operator does; return its stdout and stderr."""
        time.sleep(1)
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        return self.out.read_bytes(), self.err.read_text()


def paced(wire: Wire, seconds: float) -> tuple[int, float, list[float]]:
    """Send at RATE; return the packets that arrived, the rate that was reached, and the nanoseconds of a packet of each burst."""
    before, costs, sent = wire.counted(), [], 0
    with wire.lab.client.entered():
        ctx = struct.pack("<6I", 0, len(wire.frame), 0, wire.lab.client.ifindex("c0"), 0, 0)
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            if sent > now * RATE:
                time.sleep((sent - now * RATE) / RATE)
                continue
            out = bpf_prog.prog_test_run(wire.fds["generate"], wire.frame, ctx=ctx, repeat=CHUNK, flags=LIVE_FRAMES)
            costs.append(float(out.duration_ns))
            sent += CHUNK
        rate = sent / (time.monotonic() - began)
    if (arrived := wire.counted() - before) != sent:
        raise RuntimeError(f"{sent - arrived} of {sent} packets did not arrive")
    return sent, rate, costs


def packets_in(name: str, wrote: bytes) -> int:
    """Count the packets in what a command wrote."""
    if name != "capture":
        return wrote.count(b"\n")
    at = blocks = 0
    while at < len(wrote):
        kind, length = struct.unpack_from("=II", wrote, at)
        blocks += kind == ENHANCED_PACKET
        at += length
    return blocks // 2  # before and after the load balancer


def main() -> None:
    """Print a line for each turn, and the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    costs: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with Lab(pod=False, tag="v-") as lab:
        folder = lab.folder / "manifests"
        folder.mkdir()
        (folder / "cost.yaml").write_text(manifest())
        wire = Wire(lab)
        agent = Agent(lab, folder, attach="xdp")
        agent.start()
        wire.set(FLOWS)
        wire.burst(CHUNK)
        for _ in range(TURNS):
            for name, words in VARIANTS.items():
                reader = Reader(agent, words, lab.folder / "out") if words else None
                with pinned():
                    sent, rate, found = paced(wire, seconds)
                costs[name].append(statistics.median(found))
                line = f"{name}: {rate:,.0f} packets/s, {costs[name][-1]:.0f} ns each"
                if reader:
                    wrote, said = reader.end()
                    line += f"; {packets_in(name, wrote):,} of {sent:,} shown; {said.strip() or 'no loss reported'}"
                print(line, flush=True)
                if reader:
                    before = reader.before
                    wait_for(lambda: agent.api.status()["artifact"] == before, "the programs of before", 60)  # noqa: B023 - it ends here
        agent.stop()
        wire.close()
    for name, values in costs.items():
        ratio = statistics.median(value / plain for value, plain in zip(values, costs["no reader"], strict=True))
        print(f"{name}: {statistics.median(values):.0f} ns a packet, {ratio:.2f} of no reader, target <= 1.05")


if __name__ == "__main__":
    main()
