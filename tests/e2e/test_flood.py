"""Floods of forged packets of every kind at once: new connections are served, and no established flow is harmed.

An eighth of the default SNAT ports and an eighth of the flood that the defaults must handle, to one backend, so that ports are reused
at the same rate: 4,000 packets per second to 28,976 ports hold a port for 7 seconds. `python -m bench --only mix` runs it in full.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tests.e2e.cluster import DNS, VIP4, VIP6, WEB, Cluster
from tests.lab import flood, traffic
from tests.lab.netns import run, wait_for
from tests.lab.topology import ROOT

PORTS, RATE, SECONDS = "1024-4645", 500, 12.0
SHORT = "snat-ports-short"
FULL_S = 8.0  # at this time the flood holds every port
KINDS = (
    "syn-served-many", "syn-refused-many", "syn-silent-many", "syn-served-few", "syn-silent-few",
    "ack-served-many", "ack-silent-many", "ack-served-few", "ack-silent-few",
    "udp-served-many", "udp-silent-many", "udp-refused-many", "udp-served-few",
)  # fmt: skip


def start_flood(cluster: Cluster) -> subprocess.Popen[str]:
    """Configure the backend for it, and start."""
    lab = cluster.lab
    run(*lab.namespaces["b1"].command(["nft", "-f", "-"]), text=flood.RULES)
    lab.node.ip(
        f"route add {flood.ROUTES[4]} via 10.77.0.2 dev wan", f"route add {flood.ROUTES[6]} via fd77::2 dev wan"
    )
    vips = [f"--to={vip},{port}" for vips, port in ((WEB, 80), (DNS, 53)) for vip in vips]
    kinds = [f"--kind={kind}" for kind in KINDS]
    argv = [sys.executable, "-m", "tests.lab.flood", "c0", lab.node.mac("wan").hex(":"), *vips, *kinds]
    argv += [f"--rate={RATE}", f"--seconds={SECONDS}"]
    return lab.client.popen(argv, stdout=subprocess.PIPE, cwd=ROOT)


def http_within(vip: str, seconds: float = 2.0) -> traffic.Answer:
    """Make one request on a new connection, which must be established in that time."""
    with traffic.connect(vip, 80, timeout_s=seconds) as sock:
        backend, client = traffic.request(sock).decode().split()
    return traffic.Answer(backend, client)


def dns_within(vip: str) -> traffic.Answer:
    """Send a query, and once more after a second, as resolvers do."""
    try:
        return traffic.dns_ask(vip, 53, timeout_s=1)
    except TimeoutError:
        return traffic.dns_ask(vip, 53, timeout_s=1)


def named(cluster: Cluster) -> dict[str, str]:
    """Return the conditions of `status`, by name."""
    out: dict[str, str] = {}
    for item in cluster.agent.api.status()["conditions"]:
        out[item["name"]] = out.get(item["name"], "") + item["text"] + "\n"
    return out


class Conversation:
    """One UDP socket that sends repeatedly: the backend must always see the same source port."""

    def __init__(self, cluster: Cluster, vip: str) -> None:
        """Open it."""
        self.client, self.ask = cluster.client, partial(traffic.dns_ask, vip, 53, source_port=5000, timeout_s=1.0)
        self.outcomes: Counter[str] = Counter()

    def once(self) -> None:
        """Send from the same port."""
        with self.client.entered():
            try:
                self.outcomes[self.ask().backend] += 1
            except OSError as error:
                self.outcomes[type(error).__name__] += 1


@pytest.mark.quiet
@pytest.mark.slow
@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_every_flood_at_once(fresh: Callable[..., Cluster], attach: str) -> None:
    """TCP and UDP, IPv4 and IPv6, answered, refused and silent, from few addresses and many."""
    cluster = fresh(attach, "--snat-ports", PORTS, "--sweep-interval", "2")
    cluster.web("b1").write(cluster.folder)
    cluster.dns("b1").write(cluster.folder)
    cluster.agent.start()
    talkers = [cluster.talkers(6, vip) for vip in (VIP4, VIP6)]
    with cluster.client.entered():
        silent = [traffic.connect(vip, 80) for vip in (VIP4, VIP6) for _ in range(6)]  # connected, no data sent yet
    conversations = [Conversation(cluster, vip) for vip in DNS]
    process, began = start_flood(cluster), time.monotonic()
    while time.monotonic() - began < FULL_S:
        for conversation in conversations:
            conversation.once()
        time.sleep(0.5)
    asks = [*(partial(http_within, vip) for vip in WEB), *(partial(dns_within, vip) for vip in DNS)]
    with traffic.Load(cluster.client, asks, workers=4, pause_s=0.02) as load:
        while process.poll() is None:
            for conversation in conversations:
                conversation.once()
            time.sleep(0.5)
        wait_for(lambda: set(named(cluster)) >= {SHORT, "table-overflows"}, "the flood in the status")
        conditions = named(cluster)
        time.sleep(2)
    sent = int(process.communicate()[0])
    assert sent > 0.7 * 4 * RATE * SECONDS, "this machine is too busy for the flood"
    tally = load.tally
    assert tally.total > 100
    assert len(tally.failures) <= 0.05 * (tally.total + len(tally.failures)), Counter(tally.failures)
    assert [ask for talker in talkers for ask in talker.ask()] == ["b1"] * 12
    assert all(b"b1" in traffic.request(sock) for sock in silent)
    for each in conversations:  # a datagram may be lost on a busy machine, or be answered late
        assert each.outcomes.pop("TimeoutError", 0) <= 1
        assert each.outcomes.keys() == {"b1"}
    assert "from flows that were not established" in conditions["table-overflows"]
    assert "10.77.1.2:8080/TCP (e2e/web)" in conditions[SHORT] or "10.77.1.2:5353/UDP (e2e/dns)" in conditions[SHORT]
    reclaimed = [x for x in cluster.agent.api.metrics().splitlines() if x.startswith("lbagent_snat_reclaimed_total ")]
    assert int(float(reclaimed[0].split()[1])) > 500
