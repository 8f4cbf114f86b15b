"""The rows, each on its own host: native mode, and HAProxy with the rendered file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.apilb import many_pools, outages, through_changes
from bench.apilb.bench_host import haproxy_version
from bench.apilb.dying_server import DyingServer
from bench.apilb.many_ssh_hosts import ManySshHosts
from bench.apilb.through_traffic import GIGABYTE, ThroughTraffic
from lbagent.probes.probe_spec import ProbeSpec
from tests.lab import netns
from tests.lab.netns import LabError

ROWS = ("handshake", "bulk", "changes", "outages", "fast-outages", "pools", "watches", "ssh")
FAST_INTERVAL_S = 0.25
FEW = 4  # a trial that takes half a minute is made a quarter as often
Say = Callable[[str], object]


@dataclass(frozen=True)
class Amount:
    """Which rows, and how much of everything."""

    rows: tuple[str, ...] = ROWS
    times: int = 20  # failures of each kind
    rounds: int = 41  # of handshakes
    handshakes: int = 100  # a round, by each way; all their sockets are open at once
    fetches: int = 11
    bulk_bytes: int = GIGABYTE
    connections: int = 10_000  # by each load balancer, while everything changes
    cycles: int = 3  # of these changes
    at_once: int = 5  # servers that fail in each way
    check: ProbeSpec = field(default_factory=ProbeSpec)
    pools: int = 100
    idle_s: float = 30.0
    watches: int = 50
    ssh_hosts: int = 100

    @property
    def trials(self) -> int:
        """The number of long trials."""
        return max(1, self.times // FEW)


def quick(rows: tuple[str, ...], times: int) -> Amount:
    """Return what takes two minutes."""
    return Amount(
        rows,
        min(times, 4),
        rounds=7,
        handshakes=50,
        fetches=4,
        bulk_bytes=GIGABYTE // 4,
        connections=2000,
        cycles=1,
        idle_s=10.0,
    )


def measure(amount: Amount, say: Say = print) -> dict[str, Any]:
    """Measure; rows that cannot be measured here are listed under `missing`."""
    out: dict[str, Any] = {
        "rows": {},
        "missing": [],
        "haproxy": "",
        "watches_s": amount.check.fall * amount.check.interval + 2,
    }
    netns.sweep()
    try:
        out["haproxy"] = haproxy_version()
    except LabError as error:
        out["missing"].append(f"HAProxy, and every row beside it: {error}")
        return out
    parts: tuple[tuple[tuple[str, ...], Callable[[Amount, Say], dict[str, Any]]], ...] = (
        (("handshake", "bulk"), _traffic), (("changes",), _changes), (("outages", "fast-outages"), _outages), (("pools",), _pools), (("watches",), _watches), (("ssh",), _ssh),
    )  # fmt: skip
    for rows, part in parts:
        if set(rows) & set(amount.rows):
            try:
                out["rows"].update(part(amount, say))
            except LabError as error:
                out["missing"].append(f"{', '.join(row for row in rows if row in amount.rows)}: {error}")
                say(f"  {out['missing'][-1]}")
    return out


def _traffic(amount: Amount, say: Say) -> dict[str, Any]:
    traffic, out = ThroughTraffic(), {}
    try:
        if "handshake" in amount.rows:
            out["handshake"] = traffic.handshakes(amount.rounds, amount.handshakes)
        if "bulk" in amount.rows:
            out["bulk"] = traffic.bulk(amount.fetches, amount.bulk_bytes)
    finally:
        traffic.close()
    say(f"  {out}")
    return out


def _changes(amount: Amount, say: Say) -> dict[str, Any]:
    found = through_changes.measure(amount.connections, amount.cycles)
    say(f"  {found}")
    return {"changes": found}


def _outages(amount: Amount, say: Say) -> dict[str, Any]:
    # fast: one of each kind, as an agent that makes more than 25 checks a second makes a handshake for some of them alone
    checks = {"outages": (amount.check, amount.at_once), "fast-outages": (ProbeSpec(interval=FAST_INTERVAL_S), 1)}
    out = {}
    for row, (check, at_once) in checks.items():
        if row in amount.rows:
            trials = outages.measure(check, amount.times, at_once, say)
            out[row] = {"interval_s": check.interval, "fall": check.fall, "rise": check.rise, "trials": trials}
    return out


def _pools(amount: Amount, say: Say) -> dict[str, Any]:
    found = many_pools.measure(amount.pools, amount.idle_s)
    say(f"  {found}")
    return {"pools": found}


def _watches(amount: Amount, say: Say) -> dict[str, Any]:
    stage = DyingServer(amount.check)
    try:
        found = stage.measure(amount.trials, amount.watches)
    finally:
        stage.close()
    say(f"  {found}")
    return {"watches": found}


def _ssh(amount: Amount, say: Say) -> dict[str, Any]:
    stage = ManySshHosts()
    try:
        found = stage.measure(amount.ssh_hosts, amount.trials)
    finally:
        stage.close()
    say(f"  {found}")
    return {"ssh": found}
