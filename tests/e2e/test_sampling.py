"""`monitor --all` beside real traffic: every packet while it runs, and the programs of before when it has ended, or died."""

from __future__ import annotations

import json
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.e2e.cluster import VIP4, VIP6, Cluster
from tests.e2e.conftest import opened
from tests.e2e.test_flows import shown
from tests.e2e.test_monitor import Monitor
from tests.lab.netns import wait_for
from tests.lab.traffic import Talkers

pytestmark = pytest.mark.early
LOADED_S = 120  # until other programs are verified, beside other work


@contextmanager
def sampling(cluster: Cluster, *words: str) -> Iterator[Monitor]:
    """Run a monitor of all packets, whose programs are in force."""
    before = programs(cluster)
    monitor = Monitor(cluster, "--all", *words)
    try:
        wait_for(lambda: programs(cluster) != before or monitor.process.poll() is not None, "other programs", LOADED_S)
        assert monitor.process.poll() is None, monitor.said
        time.sleep(1)  # its answer is read
        yield monitor
    finally:
        monitor.close()
        wait_for(lambda: programs(cluster) == before, "the programs of before", LOADED_S)


def programs(cluster: Cluster) -> str:
    """Return what identifies the programs in force, with their settings."""
    found: str = cluster.agent.api.status()["artifact"]
    return found


def rows(monitor: Monitor, seconds: float = 1.0) -> list[dict[str, Any]]:
    """Return what is shown until nothing comes for so long."""
    found = []
    with suppress(queue.Empty):
        while True:
            found.append(json.loads(monitor.lines.get(timeout=seconds)))
    return found


def shown_until(monitor: Monitor, is_enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """Return what is shown: enough, until nothing comes for a while."""
    found: list[dict[str, Any]] = []

    def has_enough() -> bool:
        found.extend(rows(monitor))
        return is_enough(found)

    wait_for(has_enough, "more packets", 20)
    return found


def of_data(found: list[dict[str, Any]]) -> tuple[int, int]:
    """Return how many packets have a request, and how many an answer."""
    kinds = Counter(row["reason"] for row in found if "P" in row["flags"])
    return kinds["fwd_established"] + kinds["fwd_local"], kinds["fwd_reply"]


@pytest.mark.parametrize("vip", [VIP4, VIP6])
def test_every_packet_of_open_connections_is_shown(served: Cluster, vip: str) -> None:
    talkers = Talkers(served.client, vip, 80, 8)
    try:
        talkers.ask()
        with served.load() as load:
            load.wait_more(50)
            with sampling(served, "--client", "0.0.0.0/0" if vip == VIP4 else "::/0", "--reason", REASONS) as monitor:
                load.wait_more(50)
            load.wait_more(50)
        assert (load.tally.failures, load.tally.syns_again) == ([], 0)
        with sampling(served, "-4" if vip == VIP4 else "-6") as monitor:
            rows(monitor, 2.0)
            assert talkers.ask() == talkers.first
            found = shown_until(monitor, lambda found: min(of_data(found)) >= 8)
            assert {(row["service"], row["frontend"]) for row in found} == {("e2e/web", f"{shown(vip, 80)}/TCP")}
            for row in found:
                if row["reason"] == "fwd_established":
                    assert row["snat"]
                    assert row["frontend"]
            assert monitor.said == []
        assert talkers.ask() == talkers.first
    finally:
        talkers.close()


@pytest.mark.parametrize("vip", [VIP4, VIP6])
def test_packets_are_selected_by_the_state_of_their_flow(served: Cluster, vip: str) -> None:
    """A reply, too, although its destination is a port of this node; a filter by another state shows none of them."""
    family = "-4" if vip == VIP4 else "-6"
    talkers = Talkers(served.client, vip, 80, 8)
    try:
        with sampling(served, family, "--state", "established") as monitor:
            rows(monitor, 2.0)
            talkers.ask()
            shown_until(monitor, lambda found: min(of_data(found)) >= 8)
        with sampling(served, family, "--state", "closing") as monitor:
            talkers.ask()
            assert rows(monitor) == []
            talkers.close()
            ends = {"fwd_established", "fwd_local"}
            shown_until(monitor, lambda found: bool({row["reason"] for row in found if "F" in row["flags"]} & ends))
    finally:
        talkers.close()


REASONS = "fwd_established,fwd_reply,fwd_local"


def test_others_see_new_flows_alone(served: Cluster) -> None:
    """A monitor without --all shows no packet of an open connection, also while another one has them recorded."""
    talkers = Talkers(served.client, VIP4, 80, 4)
    plain = Monitor(served, "--event-sample", "1", "-4")
    try:
        with sampling(served) as monitor:
            rows(plain, 2.0)
            talkers.ask()
            shown_until(monitor, lambda found: len(found) >= 8)
            assert rows(plain) == []
    finally:
        plain.close()
        talkers.close()


def test_an_agent_that_dies_and_comes_back() -> None:
    """It starts with the programs without, and puts the others in force again for the monitor that has waited."""
    with opened("tc") as cluster:
        cluster.web().write(cluster.folder)
        cluster.dns().write(cluster.folder)
        cluster.agent.start()
        plain = programs(cluster)
        talkers = cluster.talkers(4)
        try:
            with sampling(cluster, "-4") as monitor:
                assert talkers.ask() == talkers.first
                shown_until(monitor, lambda found: len(found) >= 8)
                cluster.agent.kill()
                monitor.wait_said("packets are recorded again when it does")
                assert talkers.ask() == talkers.first
                cluster.agent.start()
                wait_for(
                    lambda: any("packets are recorded\n" in line for line in monitor.said),
                    "the second request",
                    LOADED_S,
                )
                rows(monitor)
                assert talkers.ask() == talkers.first
                shown_until(monitor, lambda found: len(found) >= 8)
            assert programs(cluster) == plain
        finally:
            talkers.close()


def test_what_is_refused(served: Cluster) -> None:
    for words, code, text in (
        (("--sample", "8"), 2, "--sample goes with --all"),
        (("--all", "--sample", "0"), 2, "--sample"),
    ):
        done = served.agent.cli("monitor", *words, check=False)
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
    served.agent.kill()
    done = served.agent.cli("monitor", "--all", check=False)
    assert (done.returncode, "no agent answers" in done.stderr) == (5, True), done.stderr
    served.agent.start()
