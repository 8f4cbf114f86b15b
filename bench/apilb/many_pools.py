"""The cost of an idle agent: many pools of three servers with health checks."""

from __future__ import annotations

import time
from typing import Any

from bench.apilb.bench_host import BenchHost, cpu_s, health_check, resident_mib
from lbagent.probes.probe_spec import ProbeSpec
from tests.lab.api_hosts import NAMES, PORT, ipv4

FIRST_BIND = 7500
SETTLE_S = 10.0


def measure(pools: int, seconds: float, settle_s: float = SETTLE_S) -> dict[str, Any]:
    """Return the agent's share of a core, its memory, and its checks per second."""
    host = BenchHost()
    try:
        check = health_check(ProbeSpec())
        host.host.ip(f"route add 10.10.0.0/16 via {ipv4(NAMES[0])}")
        addresses = [[f"10.10.{number}.{last}" for last in range(11, 14)] for number in range(pools)]
        host.servers.ip(*(f"addr add {address}/32 dev lo" for group in addresses for address in group))
        for server in range(3):
            host.servers_process("behaving_servers", [f"{group[server]}:{PORT}" for group in addresses])
        for number, group in enumerate(addresses):
            servers = [f"{address}:{PORT}" for address in group]
            host.pool(f"p{number}", servers=servers, bind=f"127.0.0.1:{FIRST_BIND + number}", check=check)
        host.agent.start()
        host.wait_connected([f"p{number}" for number in range(pools)])
        time.sleep(settle_s)
        return _idle(host, pools, seconds)
    finally:
        host.close()


def _idle(host: BenchHost, pools: int, seconds: float) -> dict[str, Any]:
    pid, checks = host.agent.pid, _checks(host)
    began, before = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    took, used = time.monotonic() - began, cpu_s(pid) - before
    made = _checks(host) - checks
    down = [each["last"] for row in host.rows() for each in row["servers"] if not each["up"]]
    idle = {"core": used / took, "checks_per_s": made / took, "resident_mib": resident_mib(pid)}
    return {"pools": pools, "down": down, **idle}


def _checks(host: BenchHost) -> float:
    lines = host.agent.api.metrics().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("lbagent_apilb_checks_total{"))
