"""Changes of backends by operators and Kubernetes during requests: nothing may fail."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.e2e.cluster import DNS, VIP6, WEB, Cluster
from tests.lab import traffic
from tests.lab.agent import START_TIMEOUT_S
from tests.lab.manifests import Endpoint, Manifest
from tests.lab.netns import Stopwatch, wait_for
from tests.lab.traffic import Download, Load

pytestmark = pytest.mark.early

B1 = ("10.77.1.2:8080", "[fd77:1::2]:8080")


def nothing_failed(load: Load) -> None:
    """Assert that every request of a load was answered, none of them after a lost SYN."""
    assert load.tally.failures == []
    assert load.tally.total > 100
    assert load.tally.syns_again == 0, "a packet was lost"


def test_maintenance_takes_no_new_flow_and_ends_no_old_one(served: Cluster) -> None:
    talkers, downloads = served.talkers(60), [Download(served.client, vip, 80, 20, 50) for vip in WEB * 4]
    try:
        served.agent.cli("backend", "set-state", "maintenance", *B1)
        assert "b1" not in served.http(60)
        assert "b1" in talkers.first
        assert talkers.ask() == talkers.first
        assert [download.result() for download in downloads] == [""] * 8
        line = next(line for line in served.agent.dump() if "ADDR=10.77.1.2:8080/TCP" in line)
        assert line.endswith("STATE=maintenance")
    finally:
        served.agent.cli("backend", "set-state", "active", *B1)
        talkers.close()
    assert "b1" in served.http(60)


def test_maintenance_survives_a_restart_of_the_agent(served: Cluster) -> None:
    try:
        served.agent.cli("backend", "set-state", "maintenance", *B1)
        served.agent.stop()
        assert "b1" not in served.http(40)
        served.agent.start()
        assert "b1" not in served.http(40)
    finally:
        served.agent.cli("backend", "set-state", "active", *B1)


def test_flows_are_counted_when_asked(fresh: Callable[..., Cluster]) -> None:
    """The list showed no flow during downloads, until the next sweep."""
    made = fresh("tc", "--sweep-interval", "3600")
    made.web().write(made.folder)
    made.agent.start()
    talkers = made.talkers(12)
    wait_for(lambda: sum(row["flows"] for row in made.agent.api.backends()) == 12, "twelve flows")
    rows = made.agent.api.set_state(list(B1), "maintenance")
    of_b1 = sum(name == "b1" for name in talkers.first)
    assert sum(row["flows"] for row in rows) == of_b1
    assert not any("flows_age_s" in row for row in rows)
    talkers.close()
    began = Stopwatch()
    made.agent.cli("backend", "drain", *B1, "--timeout", "60s")
    assert began.s < 45, "it waits for counts of its own, not for sweeps"


def test_a_terminating_backend_drains(served: Cluster) -> None:
    talkers = served.talkers(60)
    served.serve(served.leaving(served.web("b2", "b3"), "b1"))
    assert "b1" not in served.http(60)
    assert "b1" in talkers.first
    assert talkers.ask() == talkers.first
    talkers.close()


def test_an_endpoint_that_is_not_ready_keeps_its_flows(served: Cluster) -> None:
    talkers = served.talkers(60, VIP6)
    manifest = served.web("b2", "b3")
    sick = [Endpoint(a, 8080, "node-b1", ready=False) for a in ("10.77.1.2", "fd77:1::2")]
    served.serve(Manifest("web", WEB, [*manifest.endpoints, *sick]))
    assert "b1" not in served.http(60)
    assert "b1" in talkers.first
    assert talkers.ask() == talkers.first
    talkers.close()


def test_a_removed_backend_resets_its_flows_and_leaves_the_others_alone(served: Cluster) -> None:
    talkers = served.talkers(60)
    served.serve(served.web("b2", "b3"))
    after = talkers.ask()
    assert "b1" in talkers.first
    for first, now in zip(talkers.first, after, strict=True):
        assert now.startswith("ConnectionResetError") if first == "b1" else now == first
    talkers.close()
    # b1 got no RST; the first SYN of a later flow with one of these SNAT ports would get a challenge ACK (RFC 5961 §4.2)
    served.lab.restart("b1")


def test_backends_come_and_go_under_load(served: Cluster) -> None:
    # the load's backends stay; others, and other services, are added and removed
    served.serve(served.web("b2", "b3"), served.dns("b2", "b3"))
    talkers = served.talkers(8)
    with served.load() as load:
        for round_ in range(4):
            served.serve(served.web("b1", "b2", "b3"), served.dns("b1", "b2", "b3"))
            Manifest("other", [f"10.96.1.{round_}"], served.endpoints("b1"), port=81).write(served.folder)
            # b1 is removed as a pod in Kubernetes: first no new flows, then no backend
            rest = served.web("b2", "b3"), served.dns("b2", "b3")
            served.serve(*(served.leaving(manifest, "b1") for manifest in rest))
            load.wait_more(50)
            served.serve(*rest)
            (served.folder / "other.yaml").unlink()
    nothing_failed(load)
    assert talkers.ask() == talkers.first
    talkers.close()


def test_a_service_that_is_removed_is_refused_and_the_rest_is_served(served: Cluster) -> None:
    Manifest("other", ["10.96.2.1"], served.endpoints("b1", "b2"), port=81).write(served.folder)
    wait_for(lambda: served.selectable("other"), "the other service")
    with served.client.entered():
        assert traffic.http_get("10.96.2.1", 81).backend in ("b1", "b2")
    with served.load() as load:
        (served.folder / "other.yaml").unlink()
        wait_for(lambda: not served.selectable("other"), "the other service gone")
        load.wait_more(200)
    nothing_failed(load)
    assert not [line for line in served.agent.dump() if "10.96.2.1" in line]


@pytest.mark.parametrize("shared", [True, False], ids=["backends_live", "backends_go_too"])
def test_connections_of_a_removed_service_are_reset_and_none_hangs(served: Cluster, *, shared: bool) -> None:
    # the backends' processes run on in either case; a listener also gets a RST
    vips, names = ("10.96.2.2", "fd00:96::202"), ("b1", "b2", "b3")
    if not shared:
        served.serve(served.web("b1"))
        names = ("b2", "b3")
    Manifest("other", vips, served.endpoints(*names), port=81).write(served.folder)
    wait_for(lambda: served.selectable("other"), "the other service")
    talkers = [traffic.Talkers(served.client, vip, 81, 9) for vip in vips]
    downloads = [Download(served.client, vip, 81, 2000, 20) for vip in vips * 4]
    (served.folder / "other.yaml").unlink()
    wait_for(lambda: not served.selectable("other"), "the other service gone")
    ends = [download.result(15) for download in downloads]
    if shared:  # the sweep that ends these flows may not have come to the others
        sweeps = served.agent.api.status()["sweeps"]
        wait_for(lambda: served.agent.api.status()["sweeps"] > sweeps, "another sweep", 30)
    for talker in talkers:
        ends += talker.ask()
        talker.close()
    for name in names:  # a server whose client got a RST has half-open connections: see above
        served.lab.restart(name)
    assert {end.split(":")[0] for end in ends} == {"ConnectionResetError"}


@pytest.mark.parametrize("vip", WEB)
def test_no_backend_is_answered_at_once(served: Cluster, vip: str) -> None:
    served.serve(Manifest("web", WEB, []), Manifest("dns", DNS, [], port=53, protocol="UDP"))
    with served.client.entered():
        with pytest.raises(ConnectionRefusedError):
            traffic.http_get(vip, 80)
        with pytest.raises(ConnectionRefusedError):
            traffic.dns_ask(DNS[WEB.index(vip)], 53)


@pytest.mark.parametrize("vip", WEB)
def test_an_undefined_port_of_a_cluster_ip_is_refused(served: Cluster, vip: str) -> None:
    with served.client.entered(), pytest.raises(ConnectionRefusedError):
        traffic.http_get(vip, 4711)


def test_programs_are_replaced_in_place_under_load(served: Cluster) -> None:
    # a changed setting needs other programs: SIGHUP reads it and replaces them on every device
    config = served.lab.folder / "agent.yaml"
    config.write_text("reject-rate: 500\n")
    served.agent.stop()
    served.agent.arguments = ["--config", str(config)]
    served.agent.start()
    talkers = served.talkers(8)
    assert served.agent.process is not None
    seen: set[str] = set()
    with served.load() as load:
        for rate in (600, 700, 800):
            seen.add(served.agent.api.status()["artifact"])
            config.write_text(f"reject-rate: {rate}\n")
            served.agent.process.send_signal(signal.SIGHUP)
            wait_for(lambda: served.agent.api.status()["artifact"] not in seen, "new programs", START_TIMEOUT_S)
            load.wait_more(100)
    nothing_failed(load)
    assert talkers.ask() == talkers.first
    talkers.close()


def renamed_to(served: Cluster, name: str) -> bool:
    """Return whether `lbagent status` exits with 1 and shows a device's new name."""
    status = served.agent.cli("status", check=False)
    return status.returncode == 1 and f"renamed to {name}" in status.stdout


def test_a_device_that_is_renamed_keeps_its_programs(served: Cluster) -> None:
    node, talkers = served.lab.node, served.talkers(24)
    try:
        with served.load() as load:
            for device, other in (("lan1", "uplink1"), ("wan", "uplink0")):
                node.ip(f"link set {device} name {other}")
                load.wait_more(50)
                wait_for(lambda name=other: renamed_to(served, name), f"{other} in status", 20)
            served.agent.kill()
            served.agent.start()
            load.wait_more(50)
    finally:
        node.ip("link set uplink1 name lan1", "link set uplink0 name wan")
    with served.load() as again:
        again.wait_more(200)
    nothing_failed(load)
    nothing_failed(again)
    assert talkers.ask() == talkers.first
    talkers.close()


def test_a_backend_whose_neighbour_is_unknown_takes_its_first_packet(served: Cluster) -> None:
    served.serve(served.web("b2", "b3"), served.dns("b2", "b3"))
    served.lab.serve("b1", "new", host=4)
    with served.load() as load:
        load.wait_more(50)
        served.serve(served.web("new", "b2", "b3"), served.dns("new", "b2", "b3"))
        load.wait_more(300)
    assert load.tally.answered["new"] > 20
    nothing_failed(load)
