"""Events of the node, its links, its agent and its manifests in a chaos run. Each event restores the earlier state."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.flood import FORGED, KINDS
from tests.chaos.outages import EVERYONE, Outages
from tests.e2e.cluster import DNS, WEB, Cluster
from tests.lab.manifests import Manifest
from tests.lab.netns import run, wait_for
from tests.lab.topology import ROOT

NETS = {"b1": ("10.77.1", "fd77:1"), "b2": ("10.77.2", "fd77:2"), "client": ("10.77.0", "fd77")}
DEVICES = {"b1": "lan1", "b2": "lan2", "client": "wan"}
FLOOD_RATE = 2000  # packets per second: sender, node and backends share this machine
NODE_S = 120.0  # time-out for new programs, or an agent, on a busy machine


@dataclass
class World:
    """The parts that an event may change."""

    cluster: Cluster
    outages: Outages
    generator: random.Random

    def pause(self, least: float, most: float) -> None:
        """Wait for a time from the seed."""
        time.sleep(self.generator.uniform(least, most))


Event = Callable[[World], str]


def prepare(cluster: Cluster) -> None:
    """Prepare the laboratory: IPv6 addresses survive a link that goes down, forged sources have a return route."""
    for space in cluster.lab.namespaces.values():
        space.sysctl("ipv6/conf/all/keep_addr_on_down", 1)
        space.sysctl("ipv6/conf/default/keep_addr_on_down", 1)
    cluster.lab.node.ip(f"route add {FORGED[0]} via 10.77.0.2", f"route add {FORGED[1]} via fd77::2")


def _who(role: str) -> str:
    return EVERYONE if role == "client" else role


def _up(world: World, role: str) -> None:
    """Bring a host's end of its link up, with the routes that its network manager would set."""
    net4, net6 = NETS[role]
    space, device = world.cluster.lab.namespaces[role], "c0" if role == "client" else "e0"
    space.ip(f"link set {device} up")
    lines = [f"route replace default via {net4}.1", f"route replace default via {net6}::1 dev {device}"]
    if role == "client":
        lines += ["route replace 10.96.0.0/16 via 10.77.0.1", "route replace fd00:96::/64 via fd77::1 dev c0"]
    space.ip(*lines)


def carrier(world: World) -> str:
    """A cable is pulled and plugged in again."""
    role = world.generator.choice(("b1", "b2", "client"))
    device = "c0" if role == "client" else "e0"
    start = time.monotonic()
    with world.outages.of(_who(role)):
        world.cluster.lab.namespaces[role].ip(f"link set {device} down")
        world.pause(0.1, 2.0)
        _up(world, role)
    return f"the link of {role} was down for {time.monotonic() - start:.1f} s"


def neighbours_flushed(world: World) -> str:
    """The node's neighbour table is flushed."""
    role = world.generator.choice(("b1", "b2", "client"))
    device = DEVICES[role]
    for family in ("-4", "-6"):
        run("ip", family, "-n", world.cluster.lab.node.name, "neigh", "flush", "dev", device)
    return f"neighbours of {device} flushed"


def neighbour_deleted(world: World) -> str:
    """One neighbour is flushed."""
    role = world.generator.choice(("b1", "b2", "client"))
    address = NETS[role][0] + ".2" if world.generator.random() < 0.5 else NETS[role][1] + "::2"
    family = "-6" if ":" in address else "-4"
    # `flush` and not `del`: it does not fail without an entry
    run("ip", family, "-n", world.cluster.lab.node.name, "neigh", "flush", "to", address, "dev", DEVICES[role])
    return f"neighbour {address} deleted"


def renamed(world: World) -> str:
    """A device is renamed and gets its name back."""
    device = world.generator.choice(("lan1", "lan2", "wan"))
    world.cluster.lab.node.ip(f"link set {device} name {device}x")
    world.pause(0.5, 2.0)
    world.cluster.lab.node.ip(f"link set {device}x name {device}")
    return f"{device} was {device}x for a while"


def killed(world: World) -> str:
    """The agent is killed and restarted."""
    world.cluster.agent.kill()
    world.pause(0.0, 2.0)
    world.cluster.agent.start()
    return "the agent was killed and started again"


def stopped(world: World) -> str:
    """The agent is stopped (SIGSTOP) for a while."""
    process = world.cluster.agent.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    world.pause(0.5, 4.0)
    process.send_signal(signal.SIGCONT)
    return "the agent stood still"


def resized(world: World) -> str:
    """The flow tables and SNAT slots get another size."""
    config = world.cluster.agent.manifests.parent / "agent.yaml"
    sizes = [size for size in (1 << 16, 1 << 17, 1 << 18) if str(size) not in config.read_text()]
    size = world.generator.choice(sizes)
    config.write_text(sized(size))
    process, api = world.cluster.agent.process, world.cluster.agent.api
    assert process is not None
    before = api.status()["artifact"]
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: api.status()["artifact"] != before, "the programs of another size", NODE_S)
    return f"flow table of {size} entries"


def sized(entries: int) -> str:
    """Return a configuration file with this size of the flow table."""
    return f"flow-table-size: {entries}\n"


def edited(world: World) -> str:
    """Another Service with the same backends is added and removed."""
    number = world.generator.randrange(200)
    Manifest("other", [f"10.96.9.{number}"], world.cluster.endpoints("b1", "b2", "b3"), port=81).write(
        world.cluster.folder
    )
    world.pause(0.2, 1.5)
    (world.cluster.folder / "other.yaml").unlink(missing_ok=True)
    return f"Service 10.96.9.{number} came and went"


def drained(world: World) -> str:
    """A backend takes no new flows for a while: it is terminating, then ready again."""
    name = world.generator.choice(("b1", "b2", "b3"))
    cluster = world.cluster
    rest = [other for other in ("b1", "b2", "b3") if other != name]
    cluster.serve(cluster.leaving(cluster.web(*rest), name), cluster.leaving(cluster.dns(*rest), name))
    world.pause(0.2, 2.0)
    cluster.serve(cluster.web(), cluster.dns())
    return f"{name} drained and came back"


def broken_manifest(world: World) -> str:
    """A manifest is half-written for a while."""
    path = world.cluster.folder / "web.yaml"
    whole = path.read_text()
    path.write_text(whole[: len(whole) * 2 // 3] + "\n  - [")
    world.pause(0.2, 1.5)
    world.cluster.web().write(world.cluster.folder)
    return "web.yaml was broken for a while"


def flooded(world: World) -> str:
    """A flood without other events; other floods run during events (run.py)."""
    process, text = start_flood(world, world.generator.uniform(3, 6))
    process.wait()
    return text


def start_flood(world: World, seconds: float) -> tuple[subprocess.Popen[str], str]:
    """Start a flood of a kind from the seed; return its process and a text."""
    generator, lab = world.generator, world.cluster.lab
    kind, few = generator.choice(KINDS), generator.random() < 0.5
    argv = [sys.executable, "-m", "tests.chaos.flood", "--kind", kind, "--device", "c0", "--seconds", str(seconds)]
    argv += ["--source-mac", lab.client.mac("c0").hex(":"), "--mac", lab.node.mac("wan").hex(":")]
    argv += ["--rate", str(FLOOD_RATE), "--seed", str(generator.getrandbits(30)), *(["--few"] if few else [])]
    for web, dns in zip(WEB, DNS, strict=True):
        argv += ["--tcp", f"{web},80", "--udp", f"{dns},53"]
    process = lab.client.popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL)
    lab.closing.callback(process.wait)
    return process, f"flood: {kind}, {FLOOD_RATE}/s for {seconds:.0f} s, {'few' if few else 'many'} sources"


def recovered(world: World) -> None:
    """Wait until the agent answers again."""
    wait_for(lambda: world.cluster.agent.api.status()["ready"], "the agent's readiness", NODE_S)


EVENTS: dict[str, tuple[Event, int]] = {  # relative frequency
    "carrier": (carrier, 4),
    "neighbours flushed": (neighbours_flushed, 3),
    "neighbour deleted": (neighbour_deleted, 3),
    "device renamed": (renamed, 2),
    "agent killed": (killed, 2),
    "agent stopped": (stopped, 2),
    "tables resized": (resized, 1),
    "Service edited": (edited, 3),
    "backend drained": (drained, 2),
    "manifest broken": (broken_manifest, 1),
    "flood": (flooded, 2),
}
