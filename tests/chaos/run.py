"""One chaos run with one hook: events in the order of a seed, floods, and clients all the time."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.clients import Clients
from tests.chaos.events import EVENTS, World, prepare, recovered, sized, start_flood
from tests.chaos.outages import Outages
from tests.e2e.cluster import Cluster
from tests.lab.netns import LabError

QUIET_S = (0.3, 1.5)  # between two events
SETTLE_S = 3.0  # after the last event
FLOOD_BESIDE = 0.3  # probability that a flood starts with an event


@dataclass
class Result:
    """The events of a run and the results of its clients."""

    seed: int
    attach: str
    events: Counter[str] = field(default_factory=Counter)
    exchanges: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    packets: Counter[str] = field(default_factory=Counter)

    def text(self) -> str:
        """Return the run as lines for a terminal."""
        lines = [f"seed {self.seed}, {self.attach}: {sum(self.events.values())} events"]
        lines += [f"  {name:24} {count:6}" for name, count in sorted(self.events.items())]
        lines += [f"  {name:24} {count:6}" for name, count in sorted(self.exchanges.items())]
        lines.append(f"  longest without an outage {self.longest_s:5.2f} s")
        lines.append(
            "  packets: " + ", ".join(f"{name} {count}" for name, count in sorted(self.packets.items()) if count)
        )
        return "\n".join([*lines, *(f"  FAULT {fault}" for fault in self.faults)])

    def as_json(self) -> str:
        """Return the run as JSON."""
        return json.dumps(self.__dict__)


def run(cluster: Cluster, seed: int, seconds: float, say: Callable[[str], None]) -> Result:
    """Run events on a cluster for so long; the same seed gives the same events with the same choices."""
    generator, outages = random.Random(seed), Outages()
    world, result = World(cluster, outages, generator), Result(seed, cluster.agent.attach)
    config = cluster.agent.manifests.parent / "agent.yaml"
    config.write_text(sized(1 << 17))
    cluster.agent.arguments = [*cluster.agent.arguments, "--config", str(config)]
    prepare(cluster)
    cluster.web().write(cluster.folder)
    cluster.dns().write(cluster.folder)
    cluster.agent.start()
    names, weights = list(EVENTS), [weight for _, weight in EVENTS.values()]
    with Clients(cluster.client, outages) as clients:
        begun = clients.verdicts.begun
        end = begun + seconds
        while time.monotonic() < end:
            name = generator.choices(names, weights)[0]
            if generator.random() < FLOOD_BESIDE:
                say(f"{time.monotonic() - begun:6.1f} s  {start_flood(world, generator.uniform(2, 5))[1]} (beside)")
                result.events["flood beside"] += 1
            at = time.monotonic() - begun
            try:
                say(f"{at:6.1f} s  {EVENTS[name][0](world)}")
            except LabError as error:
                clients.verdicts.fault(f"{name}: {error}")
            result.events[name] += 1
            world.pause(*QUIET_S)
        try:
            recovered(world)
        except LabError as error:
            clients.verdicts.fault(str(error))
        time.sleep(SETTLE_S)
    verdicts = clients.verdicts
    result.exchanges, result.faults, result.longest_s = verdicts.counts, verdicts.faults, verdicts.longest_s
    result.packets = cluster.packets()
    return result
