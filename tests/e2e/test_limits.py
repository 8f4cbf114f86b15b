"""Full maps, broken and missing parts: one clear sentence, and served Services keep working."""

from __future__ import annotations

import errno
import resource
import select
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.cluster import VIP4, VIP6, WEB, Cluster
from tests.e2e.conftest import opened
from tests.e2e.test_operations import nothing_failed
from tests.lab import traffic
from tests.lab.manifests import Endpoint, Manifest, put
from tests.lab.netns import Stopwatch, wait_for

pytestmark = pytest.mark.early

LOWEST_TABLE = "1024"


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    """One running cluster for tests without their own flags."""
    with opened("xdp") as cluster:
        cluster.web().write(cluster.folder)
        cluster.dns().write(cluster.folder)
        cluster.agent.start()
        yield cluster


def test_a_second_agent_is_refused_and_names_the_first(one: Cluster) -> None:
    argv = one.lab.node.command([*one.agent.argv()[:-1], str(one.lab.folder / "other")])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 4
    assert str(one.agent.pid) in done.stderr
    assert "Traceback" not in done.stderr
    assert sum(one.http(20).values()) == 20


def test_a_file_that_does_not_parse_keeps_its_last_good_objects(one: Cluster) -> None:
    good = (one.folder / "web.yaml").read_text()
    with one.load(dns=False) as load:
        put(one.folder, "web.yaml", good + "\n---\nkind: [broken\n")
        wait_for(lambda: "web.yaml:" in str(one.agent.api.status()), "the message in the status")
        load.wait_more(200)
        put(one.folder, "web.yaml", good)
        wait_for(lambda: "web.yaml:" not in str(one.agent.api.status()), "the message gone")
    nothing_failed(load)


def test_one_bad_port_leaves_the_rest_alone(one: Cluster) -> None:
    bad = Manifest("bad", ["10.96.9.9"], one.endpoints("b1"), port=70000)
    bad.write(one.folder)
    wait_for(lambda: "bad" in str(one.agent.api.status()), "the message in the status")
    assert "70000" in str(one.agent.api.status())
    assert sum(one.http(20).values()) == 20
    (one.folder / "bad.yaml").unlink()


def test_a_contested_frontend_goes_to_one_and_both_are_told(one: Cluster) -> None:
    thief = Manifest("thief", [VIP4], one.endpoints("b1"))
    thief.write(one.folder)
    wait_for(lambda: "thief" in str(one.agent.api.status()), "the message in the status")
    # no creationTimestamp on either: the served one stays, although e2e/thief sorts before e2e/web
    owner = next(item for item in one.agent.api.services() if item["frontend"] == f"{VIP4}:80/TCP")
    assert owner["name"] == "web"
    assert set(one.http(60, [VIP4, VIP6])) == {"b1", "b2", "b3"}
    (one.folder / "thief.yaml").unlink()
    wait_for(lambda: "thief" not in str(one.agent.api.status()), "the message gone")


def test_a_folder_that_disappears_changes_nothing(one: Cluster) -> None:
    away = one.folder.with_name("away")
    with one.load() as load:
        shutil.move(one.folder, away)
        wait_for(
            lambda: one.agent.api.status()["sources"][-1]["messages"] or one.agent.api.status()["problems"], "a message"
        )
        load.wait_more(200)
        shutil.move(away, one.folder)
        load.wait_more(50)
    nothing_failed(load)
    assert one.selectable("web")


def test_a_device_that_does_not_exist_is_named(fresh: Callable[..., Cluster]) -> None:
    cluster = fresh("xdp")
    cluster.agent.devices = ["nowhere0"]
    cluster.agent.start(wait=False)
    assert cluster.agent.process is not None
    assert cluster.agent.process.wait(120) == 3
    assert "nowhere0" in cluster.agent.tail()
    assert "Traceback" not in cluster.agent.tail(200)


def allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))


def open_many(cluster: Cluster, count: int) -> list[socket.socket]:
    """Open connections to both VIPs in turns, one after another."""
    allow_many_files()
    with cluster.client.entered():
        return [traffic.connect(WEB[number % 2], 80) for number in range(count)]


def begin_many(cluster: Cluster, count: int, timeout_s: float) -> list[socket.socket]:
    """Begin connections to both VIPs in turns; return those that are established `timeout_s` after the last one."""
    allow_many_files()
    begun, poll = {}, select.poll()
    with cluster.client.entered():
        for number in range(count):
            vip = WEB[number % 2]
            sock = socket.socket(socket.AF_INET6 if ":" in vip else socket.AF_INET, socket.SOCK_STREAM)
            sock.setblocking(False)
            assert sock.connect_ex((vip, 80)) in (0, errno.EINPROGRESS)
            begun[sock.fileno()] = sock
            poll.register(sock, select.POLLOUT)
    out, watch = [], Stopwatch()
    while len(out) < count and watch.s < timeout_s:
        for descriptor, _ in poll.poll(100):
            poll.unregister(descriptor)
            out.append(begun.pop(descriptor))
            out[-1].settimeout(traffic.TIMEOUT_S)
    for sock in begun.values():
        sock.close()
    return out


def test_more_connections_than_the_flow_table_holds(fresh: Callable[..., Cluster]) -> None:
    small = ("--flow-table-size", LOWEST_TABLE, "--flow6-table-size", LOWEST_TABLE)
    cluster = fresh("xdp", *small)
    cluster.web("b1", "b2", "b3").write(cluster.folder)
    cluster.agent.start()
    sockets = open_many(cluster, 2600)
    broken = [sock for sock in sockets if b"b" not in traffic.request(sock)]
    for sock in sockets:
        sock.close()
    assert broken == []
    assert cluster.packets()["fwd_spill"] > 0


def test_no_free_snat_port_stops_new_flows_and_no_old_one(fresh: Callable[..., Cluster]) -> None:
    cluster = fresh("xdp", "--snat-ports", "2000-2511")
    cluster.web("b1", "b2").write(cluster.folder)
    cluster.agent.start()
    sockets = begin_many(cluster, 2300, timeout_s=2)
    assert 1200 < len(sockets) < 2200, "512 ports for each of two backends a family, not all of which 16 probes find"
    assert all(b"b" in traffic.request(sock) for sock in sockets)
    assert cluster.packets()["drop_snat_exhausted"] > 0
    for sock in sockets:
        sock.close()


def test_a_full_service_map_stops_one_service_and_no_other(fresh: Callable[..., Cluster]) -> None:
    cluster = fresh("xdp", "--max-service-slots", "64")
    cluster.web().write(cluster.folder)
    cluster.agent.start()
    with cluster.load(dns=False) as load:
        crowd = [f"10.244.7.{number}" for number in range(1, 101)]
        Manifest("crowd", ["10.96.7.7"], [Endpoint(address) for address in crowd]).write(cluster.folder)
        wait_for(lambda: cluster.agent.api.status()["failing"], "the failing service in the status")
        load.wait_more(200)
    failing = cluster.agent.api.status()["failing"]
    assert [item["service"] for item in failing] == ["e2e/crowd"]
    assert "--max-service-slots" in failing[0]["error"]
    nothing_failed(load)
