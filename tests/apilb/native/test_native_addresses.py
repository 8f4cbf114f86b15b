"""Native mode on every address of a host: present and later ones, for pods and for other machines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.lab import netns
from tests.lab.api_hosts import NAMES, PORT, ApiHosts, ask, ipv4, ipv6, reached, tls

pytestmark = [pytest.mark.root, pytest.mark.bpf]
wait_for = partial(netns.wait_for, timeout_s=120)  # a busy machine


@pytest.fixture(scope="module", params=["tc", "xdp"])
def everywhere(request: pytest.FixtureRequest) -> Iterator[ApiHosts]:
    made = ApiHosts("--device", "eth0", "--pod-device", "pod0", "--attach", request.param)
    try:
        made.serve()
        made.host.sysctl("ipv4/ip_forward", 1)
        made.host.sysctl("ipv6/conf/all/forwarding", 1)
        made.host.checksum_offload_off("eth0")
        made.servers.checksum_offload_off("eth0")
        made.servers.receive_offload_on("eth0")
        servers = [f"{ipv4(name)}:{PORT}" for name in NAMES] + [f"[{ipv6(name)}]:{PORT}" for name in NAMES]
        made.pool(servers=servers, bind="[::]:6443")
        made.agent.start()
        yield made
    finally:
        made.close()


def test_every_address_of_the_host_and_its_loopback(everywhere: ApiHosts) -> None:
    with everywhere.inside():
        for address in ("127.0.0.1", "127.9.9.9", "10.9.0.1", "10.8.0.1", "::1", "fd09::1"):
            assert set(reached(address, 6443)) == {"a", "b", "c"}, address
            with tls(address, 6443) as sock:
                assert sock.getpeername()[:2] == (address, 6443)


def test_pods_and_other_machines(everywhere: ApiHosts) -> None:
    with everywhere.pod.entered():
        for address in ("10.8.0.1", "10.9.0.1"):
            assert set(reached(address, 6443)) == {"a", "b", "c"}
        with pytest.raises(ConnectionRefusedError):
            ask("127.0.0.1", 6443)
    with everywhere.servers.entered():
        for address in ("10.9.0.1", "fd09::1"):
            assert set(reached(address, 6443)) == {"a", "b", "c"}


def test_an_address_that_comes_later(everywhere: ApiHosts) -> None:
    everywhere.host.ip("addr add 10.9.0.77/24 dev eth0")
    wait_for(lambda: "10.9.0.77:6443/TCP" in str(everywhere.agent.json("svc", "list")), "a frontend for the address")
    with everywhere.servers.entered():
        assert ask("10.9.0.77", 6443) in NAMES
    everywhere.host.ip("addr del 10.9.0.77/24 dev eth0")
    wait_for(lambda: "10.9.0.77:6443/TCP" not in str(everywhere.agent.json("svc", "list")), "the frontend gone")


def test_all_down_resets_packets_too(everywhere: ApiHosts) -> None:
    for name in NAMES:
        everywhere.behave(name, "503")
    try:
        wait_for(lambda: not any(everywhere.servers_up().values()), "no server up")
        for place in (everywhere.servers, everywhere.pod):
            with place.entered(), pytest.raises(ConnectionRefusedError):
                ask("10.9.0.1", 6443)
    finally:
        for name in NAMES:
            everywhere.behave(name, "200")
    wait_for(lambda: all(everywhere.servers_up().values()), "all servers up")
