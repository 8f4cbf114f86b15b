"""What established connections feel: restarts of the agent, changes of a Service, backends and frontends that go."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest

from tests.e2e.cluster import DNS, WEB, Cluster
from tests.lab import traffic
from tests.lab.manifests import Manifest
from tests.lab.netns import wait_for


def talk(sock: socket.socket) -> str:
    """Return who answers on an open connection."""
    return traffic.request(sock).decode().split()[0]


def is_reset(sock: socket.socket) -> bool:
    """Return whether a request on the connection ends with a reset."""
    try:
        talk(sock)
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


@pytest.mark.parametrize("vip", WEB)
def test_a_connection_survives_changes_and_a_killed_agent(served: Cluster, vip: str) -> None:
    with served.client.entered():
        sock = traffic.connect(vip, 80)
    with sock:
        mine = talk(sock)
        others = sorted({"b1", "b2", "b3"} - {mine})
        served.serve(served.web(mine, others[0]))
        assert talk(sock) == mine
        served.agent.kill()
        assert talk(sock) == mine
        assert set(served.http(40)) == {mine, others[0]}  # the table serves on
        served.web().write(served.folder)
        served.agent.start()
        assert talk(sock) == mine
        served.wait_backends(served.web())
        assert set(served.http()) == {"b1", "b2", "b3"}


@pytest.mark.parametrize("vip", WEB)
def test_a_backend_that_goes_resets_its_connections(served: Cluster, vip: str) -> None:
    with served.client.entered():
        sock = traffic.connect(vip, 80)
    with sock:
        mine = talk(sock)
        served.serve(served.web(*sorted({"b1", "b2", "b3"} - {mine})))
        wait_for(lambda: is_reset(sock), "the reset")


@pytest.mark.parametrize("vip", DNS)
def test_udp_moves_to_another_backend(served: Cluster, vip: str) -> None:
    ask = lambda: traffic.dns_ask(vip, 53, source_port=45678)  # noqa: E731 - the same port each time
    first = served.client.call(ask).backend
    assert served.client.call(ask).backend == first
    rest = {"b1", "b2", "b3"} - {first}
    served.serve(served.dns(*sorted(rest)))
    wait_for(lambda: served.client.call(ask).backend in rest, "another backend", 3)


@pytest.mark.parametrize("number", [0, 1], ids=["ipv4", "ipv6"])
def test_a_frontend_that_goes_refuses_its_connections(served: Cluster, number: int) -> None:
    vips = ("10.96.8.1", "fd00:96::801")
    service = Manifest("gone", vips, served.endpoints("b1", "b2", "b3"))
    served.serve(service)
    with served.client.entered():
        sock = traffic.connect(vips[number], 80)
    with sock:
        talk(sock)
        (served.folder / "gone.yaml").unlink()
        wait_for(lambda: served.selectable("gone") is None, "the end of the Service")
        wait_for(lambda: is_reset(sock), "the reset")


def test_changes_under_load_lose_no_request(served: Cluster) -> None:
    with served.load(workers=4) as load:
        for number in range(30):
            names = ("b1", "b2", "b3")[: 1 + number % 3]
            served.web(*names).write(served.folder)
            time.sleep(0.1)
        load.wait_more(500, 120)
    # The backend of a request under way may be taken away: its connection is then reset, as with bpf.
    refused = [text for text in load.tally.failures if "Reset" not in text]
    assert not refused, refused[:5]
    assert load.tally.total > 500


def test_a_thousand_updates_under_load(served: Cluster) -> None:
    """Backends come back, drain, and are chosen in other ways, and no request fails: no connection is reset either."""
    names = ("b1", "b2", "b3")
    sticky = {"sessionAffinity": "ClientIP"}

    def version(number: int) -> Manifest:
        going = names[number % 3]
        staying = [each for each in names if each != going]
        web = served.web(*(names if number % 2 else staying), algorithm=("random", "maglev")[number // 7 % 2])
        web = replace(web, spec=sticky if number // 5 % 2 else {})
        return web if number % 2 else served.leaving(web, going)

    with served.load(workers=4, dns=False) as load:
        for number in range(1000):
            version(number).write(served.folder)
            time.sleep(0.005)
        load.wait_more(1000, 120)
    assert load.tally.failures == []
    assert load.tally.total > 1000
