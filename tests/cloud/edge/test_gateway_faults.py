"""Provider edge with a router's errors, and with slow, unusual or hostile routers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.cloud.edge.edge_balancers import EdgeBalancers
from lbagent.cloud.edge.edge_config import read_edge_config
from lbagent.cloud.edge.protocols import upnp_gateway
from lbagent.cloud.edge.protocols.port_mapping import GatewayFailure, GatewayUnreachable, PortMapping
from lbagent.cloud.provider import Ingress, LoadBalancerStatus, Refusal, RetryAfter, Service
from lbagent.objects.records import ObjectChange
from lbagent.testing.provider import CLUSTER, FakeCluster
from tests.cloud.edge.edge_lab import manifest, port, until
from tests.cloud.edge.fake_igd import FakeIgd

HOST = "192.0.2.101"


class Lab:
    """Balancers at a router in memory; the test triggers polls."""

    def __init__(self, router: FakeIgd, config: str = "", nodes: tuple[str, ...] = ("n1",)) -> None:
        self.router, self.cluster, self.now = router, FakeCluster(nodes), 0.0
        text = f"gateway: {router.url}\nprotocols: [upnp]\nnode: first-ready\npoll: 1s\n{config}"
        self.balancers = EdgeBalancers(read_edge_config(text))
        self.balancers.keeper._clock = lambda: self.now
        self.balancers.begin(self.cluster)

    async def ensure(self, found: dict[str, Any] | Service) -> Service:
        service = found if isinstance(found, Service) else self.cluster.add(found)
        return self.cluster.set_status(service, await self.balancers.ensure(CLUSTER, service, self.cluster.nodes))

    async def poll(self) -> None:
        """Poll as `run` does."""
        try:
            await self.balancers.poll()
        except GatewayUnreachable as error:
            self.balancers._lose(error)


def play(body: Callable[[Lab], Awaitable[None]], config: str = "", nodes: tuple[str, ...] = ("n1",)) -> None:
    async def run() -> None:
        router = FakeIgd()
        await router.start()
        await body(Lab(router, config, nodes))
        router.server.close()

    asyncio.run(run())


@pytest.mark.parametrize("code", [725, 402])
def test_leases_without_end_where_there_are_no_others(code: int) -> None:
    async def body(lab: Lab) -> None:
        lab.router.no_leases = code
        for number, calls in ((1, 2), (2, 3)):  # a lease is requested once
            await lab.ensure(manifest(number, port("http", 80 + number, 30000 + number)))
            assert lab.router.table["TCP", str(80 + number)]["NewLeaseDuration"] == "0"
            assert lab.router.calls["AddPortMapping"] == calls
        await lab.poll()
        assert lab.router.calls["AddPortMapping"] == 3

    play(body)


@pytest.mark.parametrize("code", [606, 715, 716, 724, 726, 727])
def test_refusals(code: int) -> None:
    async def body(lab: Lab) -> None:
        lab.router.errors["AddPortMapping"] = [0, code]
        with pytest.raises(Refusal, match=f"gateway 127.0.0.1 \\(Fake\\) refuses 81/TCP -> .*error {code}") as found:
            await lab.ensure(manifest(1, port("a", 80, 30080), port("b", 81, 30081)))
        assert found.value.reason == "LoadBalancerRefused"
        assert lab.router.table == {}  # none of both
        await lab.poll()
        assert lab.cluster.synced == []

    play(body)


@pytest.mark.parametrize("code", [501, 728, 899])
def test_failures_are_tried_again(code: int) -> None:
    async def body(lab: Lab) -> None:
        lab.router.errors["AddPortMapping"] = [code]
        with pytest.raises(GatewayFailure, match=f"error {code}"):
            await lab.ensure(manifest(1))
        assert lab.balancers.keeper.gateway is not None  # it answers: no new search
        await lab.ensure(manifest(1))
        assert len(lab.router.table) == 1

    play(body)


@pytest.mark.parametrize("code", [718, 729])
def test_a_conflict_with_nothing_to_see(code: int) -> None:
    async def body(lab: Lab) -> None:
        lab.router.errors["AddPortMapping"] = code
        with pytest.raises(
            Refusal, match="maps ports only to the requesting host, 127.0.0.1, not to 192.0.2.101"
        ) as found:
            await lab.ensure(manifest(1))
        assert found.value.reason == "PortConflict"
        for _ in range(3):
            await lab.poll()
        assert lab.cluster.synced == []  # no warning in a loop

    play(body)


def test_a_mapping_of_another_node_that_only_that_one_may_change() -> None:
    async def body(lab: Lab) -> None:
        await lab.ensure(manifest(1))
        lab.router.table["TCP", "80"] |= {"NewInternalClient": "192.0.2.102", "NewLeaseDuration": "70"}
        lab.router.errors |= {"AddPortMapping": 718, "DeletePortMapping": 606}
        with pytest.raises(RetryAfter, match="192.0.2.102 had it before, and its lease ends in 70 s") as found:
            await lab.ensure(manifest(1))
        assert found.value.seconds == 71
        lab.router.errors.clear()
        await lab.ensure(manifest(1))
        assert lab.router.table["TCP", "80"]["NewInternalClient"] == HOST

    play(body, nodes=("n1", "n2"))


def test_a_router_that_cuts_descriptions() -> None:
    async def body(lab: Lab) -> None:
        lab.router.description_length = 16
        service = await lab.ensure(manifest(1))
        calls = lab.router.calls["AddPortMapping"]
        await lab.ensure(manifest(1))
        await lab.poll()
        assert lab.router.calls["AddPortMapping"] == calls
        await lab.balancers.ensure_deleted(CLUSTER, service)
        assert lab.router.table == {}
        lab.router.table["TCP", "80"] = {
            "NewInternalClient": "192.0.2.50", "NewInternalPort": "30001", "NewPortMappingDescription": "kubernetes/shop/"
        }  # fmt: skip
        with pytest.raises(Refusal):
            await lab.ensure(manifest(1))

    play(body)


def test_leases_that_the_router_shortens() -> None:
    async def body(lab: Lab) -> None:
        lab.router.lease_s = 120
        await lab.ensure(manifest(1))
        for left, adds in ((120, 1), (61, 1), (60, 2)):
            lab.router.table["TCP", "80"]["NewLeaseDuration"] = str(left)
            await lab.poll()
            assert lab.router.calls["AddPortMapping"] == adds, left
        assert lab.router.added[-1]["NewLeaseDuration"] == "3600"

    play(body)


def test_leases_that_the_router_does_not_tell() -> None:
    async def body(lab: Lab) -> None:
        lab.router.lease_s = 0
        await lab.ensure(manifest(1))
        for lab.now, adds in ((1700.0, 1), (1800.0, 2), (3500.0, 2), (3600.0, 3)):
            await lab.poll()
            assert lab.router.calls["AddPortMapping"] == adds, lab.now

    play(body)


def test_what_is_lost_and_cannot_come_back_is_told_once() -> None:
    async def body(lab: Lab) -> None:
        await lab.ensure(manifest(1))
        lab.router.table["TCP", "80"] = {"NewInternalClient": "192.0.2.9", "NewPortMappingDescription": "game"}
        for _ in range(3):
            await lab.poll()
        assert lab.cluster.synced == ["shop/web-1"]
        assert lab.balancers.count() == 0
        with pytest.raises(Refusal, match="for 'game'"):
            await lab.ensure(manifest(1))
        for _ in range(3):
            await lab.poll()
        assert lab.cluster.synced == ["shop/web-1"]
        lab.router.table.clear()
        await lab.poll()
        assert lab.router.table["TCP", "80"]["NewInternalClient"] == HOST
        assert lab.balancers.count() == 1

    play(body)


def test_a_disabled_mapping_is_enabled() -> None:
    async def body(lab: Lab) -> None:
        await lab.ensure(manifest(1))
        lab.router.table["TCP", "80"]["NewEnabled"] = "0"
        await lab.poll()
        assert lab.router.table["TCP", "80"]["NewEnabled"] == "1"

    play(body)


def test_a_private_address_is_said() -> None:
    async def body(lab: Lab) -> None:
        for lab.router.address in ("10.1.2.3", "100.64.9.9", "192.168.0.1", "172.31.255.255"):
            await lab.poll()
            service = await lab.ensure(manifest(1))
            assert service.status.ingress[0].ip == lab.router.address
            assert lab.cluster.events[-1].reason == "PrivateExternalAddress"
            assert lab.router.address in lab.cluster.events[-1].text
        count = len(lab.cluster.events)
        lab.router.address = "172.32.0.1"
        await lab.poll()
        await lab.ensure(manifest(1))
        assert len(lab.cluster.events) == count

    play(body)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"HTTP/1.1 302 X\r\nLocation: http://192.0.2.9/d\r\n\r\n", "redirects"),
        (b"HTTP/1.1 200 X\r\n\r\n" + b"x" * (300 << 10), "larger than 256 KiB"),
        (b"HTTP/1.1 200 X\r\n\r\n<root>", "not valid XML"),
        (b'HTTP/1.1 200 X\r\n\r\n<!DOCTYPE a [<!ENTITY a "b">]><root/>', "document type"),
        (b"HTTP/1.1 404 X\r\n\r\n", "status 404"),
        (b"", "ends too soon"),
    ],
)
@pytest.mark.parametrize("action", ["description", "AddPortMapping"])
def test_a_strange_answer(action: str, raw: bytes, problem: str) -> None:
    async def body(lab: Lab) -> None:
        lab.router.raw[action] = raw or b"H"
        with pytest.raises(
            GatewayUnreachable, match=problem if (action, problem) != ("AddPortMapping", "status 404") else "404"
        ):
            await lab.ensure(manifest(1))
        assert not lab.balancers.is_up
        lab.router.raw.clear()
        lab.now = 10.0
        await lab.poll()
        assert lab.balancers.is_up
        assert lab.cluster.synced == ["shop/web-1"]  # at once, not after the controller's pause
        await lab.ensure(manifest(1))

    play(body)


def test_a_router_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = upnp_gateway.exchange

    async def quick(*arguments: Any, **_: Any) -> Any:
        return await real(*arguments, within_s=0.2)

    monkeypatch.setattr(upnp_gateway, "exchange", quick)

    async def body(lab: Lab) -> None:
        service = await lab.ensure(manifest(1))
        lab.router.hold |= {"GetSpecificPortMappingEntry", "GetExternalIPAddress"}
        await lab.poll()
        assert not lab.balancers.is_up
        await lab.balancers.ensure_deleted(CLUSTER, service)  # never refused
        lab.router.hold.clear()
        lab.cluster.remove(service)
        lab.now = 10.0
        await lab.poll()
        assert lab.router.table == {}

    play(body)


def test_one_search_a_poll() -> None:
    async def body(lab: Lab) -> None:
        lab.router.raw["description"] = b"HTTP/1.1 500 X\r\n\r\n"
        for _ in range(5):
            with suppress(GatewayUnreachable):
                await lab.ensure(manifest(1))
        assert lab.router.calls["description"] == 1
        lab.now = 1.0
        await lab.poll()
        assert lab.router.calls["description"] == 2

    play(body)


def test_an_endless_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upnp_gateway, "MAX_MAPPINGS", 100)

    async def body(lab: Lab) -> None:
        entry = {"NewRemoteHost": "", "NewProtocol": "TCP", "NewPortMappingDescription": "x"}
        lab.router._GetGenericPortMappingEntry = lambda asked: entry | {"NewExternalPort": asked["NewPortMappingIndex"]}  # type: ignore[method-assign]
        await lab.poll()
        assert lab.router.calls["GetGenericPortMappingEntry"] == upnp_gateway.MAX_MAPPINGS
        assert lab.router.calls["DeletePortMapping"] == 0

    play(body)


def test_a_list_that_repeats_an_entry_ends_there() -> None:
    async def body(lab: Lab) -> None:
        entry = {"NewRemoteHost": "", "NewExternalPort": "7", "NewProtocol": "TCP", "NewPortMappingDescription": "x"}
        others = [entry, entry | {"NewProtocol": "UDP"}, entry | {"NewRemoteHost": "192.0.2.9"}, entry]
        lab.router._GetGenericPortMappingEntry = lambda asked: others[min(int(asked["NewPortMappingIndex"]), 3)]  # type: ignore[method-assign]
        await lab.poll()
        assert lab.router.calls["GetGenericPortMappingEntry"] == 4

    play(body)


def test_a_list_that_takes_too_long_keeps_no_finalizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries that were read in time count; the Service is deleted with its mapping."""
    monkeypatch.setattr(upnp_gateway, "LIST_S", 0.5)

    async def body(lab: Lab) -> None:
        service = await lab.ensure(manifest(1))
        lab.router.hold.add("GetGenericPortMappingEntry")
        await lab.balancers.ensure_deleted(CLUSTER, service)
        assert lab.router.table == {}
        assert lab.router.calls["GetGenericPortMappingEntry"] == 1
        gateway = await lab.balancers.keeper.connect()
        assert await gateway.mappings() == []

    play(body)


SPECIAL = ["127.0.0.1", "169.254.169.254", "224.0.0.1", "239.1.2.3", "255.255.255.255", "240.0.0.1", "0.1.2.3"]


@pytest.mark.parametrize("address", [*SPECIAL, "10.96.0.1", "10.96.0.200", "192.0.2.101", "10.244.3.7"])
@pytest.mark.parametrize("config", ["", "hairpin: true\n", "externalAddresses: [0.0.0.0/0]\n"])
def test_an_address_that_no_router_may_report_is_in_no_status(address: str, config: str) -> None:
    """Special ones, a node's, those of pods and of the service range, also if the configuration allows them."""

    async def body(lab: Lab) -> None:
        node = lab.cluster._nodes["n1"]
        pods = ("10.244.3.0/24", "fd00:244::/64")
        lab.cluster._nodes["n1"] = replace(node, record=replace(node.record, pod_cidrs=pods))
        lab.router.address = address
        with pytest.raises(Refusal, match=f"reports the WAN address {address}, which is not used") as caught:
            await lab.ensure(manifest(1, clusterIP="10.96.0.1", clusterIPs=["10.96.0.1"]))
        assert (caught.value.reason, caught.value.status) == ("ExternalAddressRefused", None)
        assert lab.router.table == {}
        service = lab.cluster.add(manifest(1, clusterIP="10.96.0.1", clusterIPs=["10.96.0.1"]))
        had = lab.cluster.set_status(service, LoadBalancerStatus((Ingress(ip=address),)))
        with pytest.raises(Refusal) as caught:
            await lab.ensure(had)
        assert caught.value.status == LoadBalancerStatus()  # it is removed
        lab.router.address = "203.0.113.9"
        await lab.poll()
        assert lab.cluster.synced == ["shop/web-1"]  # checked again
        await lab.ensure(had)

    play(body, config)


@pytest.mark.parametrize(
    ("config", "modes", "warned"),
    [
        ("", {"": "", "Proxy": "Proxy", "VIP": "VIP"}, False),  # the gateway is named
        ("hairpin: true\n", {"": "", "Proxy": "", "VIP": "VIP"}, False),
        ("externalAddresses: [203.0.113.0/29]\n", {"": "", "Proxy": "Proxy"}, False),
        ("externalAddresses: [198.51.100.0/24]\n", {"": "Proxy", "VIP": "Proxy"}, True),
        ("externalAddresses: [198.51.100.0/24]\nhairpin: true\n", {"": "Proxy"}, True),
        ("externalAddresses: [198.51.100.0/24]\nexternalIP: 203.0.113.5\n", {"": ""}, False),
    ],
)
def test_nodes_divert_only_addresses_that_the_operator_allows(config: str, modes: dict[str, str], warned: bool) -> None:
    async def body(lab: Lab) -> None:
        for before, after in modes.items():
            service = lab.cluster.add(manifest(1))
            status = LoadBalancerStatus((Ingress(ip="203.0.113.5", ip_mode=before),)) if before else None
            found = await lab.ensure(lab.cluster.set_status(service, status))
            assert [(each.ip, each.ip_mode) for each in found.status.ingress] == [("203.0.113.5", after)]
            assert any(each.reason == "ExternalAddressNotAllowed" for each in lab.cluster.events) is warned

    play(body, config)


def test_a_gateway_that_is_only_found_by_search_allows_nothing() -> None:
    plain, hairpin = read_edge_config(""), read_edge_config("hairpin: true")
    assert (plain.allows("8.8.8.8"), plain.is_diverted("8.8.8.8")) == (False, False)
    assert (hairpin.allows("8.8.8.8"), hairpin.is_diverted("8.8.8.8")) == (False, True)
    named = read_edge_config("externalAddresses: [8.8.8.8/32]")
    assert [named.is_diverted(each) for each in ("8.8.8.8", "8.8.8.9")] == [True, False]


def test_a_label_that_goes_is_looked_at() -> None:
    async def body(lab: Lab) -> None:
        found = manifest(1, annotations={})
        found["metadata"]["labels"] = {"midokura.com/load-balancer-type": "upnp-igd"}
        await lab.ensure(found)
        assert [event.reason for event in lab.cluster.events] == ["LabelInPlaceOfAnnotation"]
        lab.cluster.add(manifest(1, annotations={}))
        assert lab.cluster.synced == ["shop/web-1"]
        with pytest.raises(Refusal) as refused:
            await lab.ensure(manifest(1, annotations={}))
        assert refused.value.status is not None
        assert lab.router.table == {}

    play(body, "acceptLabels: true")


def test_a_node_that_is_ready_takes_over() -> None:
    async def body(lab: Lab) -> None:
        await lab.ensure(manifest(1))
        lab.cluster.add(manifest(2, annotations={}))
        old = lab.cluster._nodes["n2"]
        new = lab.cluster._nodes["n2"] = replace(old, record=replace(old.record, ready=True))
        lab.cluster._tell(ObjectChange("Node", "n2", old, new))
        assert lab.cluster.synced == ["shop/web-1"]
        lab.cluster._tell(ObjectChange("Node", "n2", new, new))
        assert lab.cluster.synced == ["shop/web-1"]
        await lab.ensure(manifest(1))
        assert lab.router.table["TCP", "80"]["NewInternalClient"] == "192.0.2.102"

    play(body, nodes=("n1", "n2"))


def test_a_label_alone_is_named() -> None:
    async def body(lab: Lab) -> None:
        found = manifest(1, annotations={})
        found["metadata"]["labels"] = {"midokura.com/load-balancer-type": "upnp-igd"}
        service = lab.cluster.add(found)
        with pytest.raises(Refusal, match="is a label; it counts as an annotation, or with `acceptLabels: true`"):
            await lab.ensure(service)
        assert lab.router.calls["AddPortMapping"] == 0
        plain = manifest(1, annotations={})
        lab.cluster.add(plain)
        assert lab.cluster.synced == ["shop/web-1"]

    play(body)


def test_two_services_at_once_want_one_port() -> None:
    async def body(lab: Lab) -> None:
        services = [lab.cluster.add(manifest(number)) for number in (1, 2)]
        found = await asyncio.gather(*map(lab.ensure, services), return_exceptions=True)
        assert [isinstance(each, Refusal) for each in found].count(True) == 1
        assert len(lab.router.table) == 1

    play(body)


def test_a_mapping_that_a_poll_looks_at_while_it_goes() -> None:
    """Deleted and polled at the same time: it is not created again."""

    async def body(lab: Lab) -> None:
        for number in range(1, 8):
            await lab.ensure(manifest(number, port("http", 80 + number, 30000 + number)))
        await lab.poll()
        for number in range(2, 8):
            asked, polling = lab.router.calls["GetExternalIPAddress"], asyncio.create_task(lab.poll())
            await until(
                lambda asked=asked: lab.router.calls["GetExternalIPAddress"] > asked,
                "the poll's first request",
                step_s=0.0,
            )
            await lab.balancers.ensure_deleted(CLUSTER, lab.cluster.add(manifest(number)))
            await polling
            assert ("TCP", str(80 + number)) not in lab.router.table
        assert list(lab.balancers.mapped_services) == ["shop/web-1"]

    play(body)


def test_a_mapping_of_an_earlier_process_that_is_found_while_it_goes() -> None:
    async def body(lab: Lab) -> None:
        service = await lab.ensure(manifest(1))
        lab.balancers.mapped_services.clear()
        await asyncio.gather(lab.poll(), lab.balancers.ensure_deleted(CLUSTER, service))
        assert lab.balancers.mapped_services == {}
        await lab.poll()
        assert lab.router.table == {}

    play(body)


def test_a_router_that_lists_nothing() -> None:
    async def body(lab: Lab) -> None:
        lab.router.errors["GetGenericPortMappingEntry"] = 501
        service = await lab.ensure(manifest(1))
        await lab.poll()
        assert lab.balancers.is_up
        lab.balancers.mapped_services.clear()  # as another process
        await lab.balancers.ensure_deleted(CLUSTER, service)
        assert lab.router.table == {}
        lab.router.table["TCP", "80"] = {"NewInternalClient": HOST, "NewPortMappingDescription": "game"}
        await lab.balancers.ensure_deleted(CLUSTER, service)
        assert len(lab.router.table) == 1

    play(body)


def test_what_an_earlier_process_made_of_other_ports_goes_with_the_service() -> None:
    async def body(lab: Lab) -> None:
        gateway = await lab.balancers.keeper.connect()
        for number, client in ((8080, HOST), (8081, "192.0.2.77")):  # the latter is not a node of the cluster
            await gateway.add(PortMapping("TCP", number, client, 30001, "kubernetes/shop/web-1/old"), 0)
        await lab.balancers.ensure_deleted(CLUSTER, lab.cluster.add(manifest(1)))
        assert list(lab.router.table) == [("TCP", "8081")]

    play(body)


def test_a_gateway_that_vanishes_is_said_once() -> None:
    async def body(lab: Lab) -> None:
        await lab.ensure(manifest(1))
        await lab.poll()
        lab.router.raw["GetExternalIPAddress"] = b"H"
        for lab.now in (10.0, 20.0, 30.0):
            await lab.poll()
        (event,) = lab.cluster.events
        assert (event.service, event.reason, event.warning) == ("shop/web-1", "GatewayUnreachable", True)
        assert "the mappings stay until their leases end" in event.text

    play(body)


def test_a_removal_that_fails_is_made_up_for() -> None:
    async def body(lab: Lab) -> None:
        service = await lab.ensure(manifest(1))
        await lab.poll()
        lab.router.errors["DeletePortMapping"] = [501]
        await lab.balancers.ensure_deleted(CLUSTER, service)
        assert len(lab.router.table) == 1
        lab.cluster.remove(service)
        await lab.poll()
        assert lab.router.table == {}

    play(body)


def test_is_not_of_this_cluster() -> None:
    async def body(lab: Lab) -> None:
        theirs = [
            PortMapping("TCP", 1, HOST, 1, "other/shop/web-1/http"),
            PortMapping("TCP", 2, HOST, 1, "kubernetes/shop"),
            PortMapping("TCP", 3, HOST, 1, "kubernetes/shop/web-1/http/x"),
            PortMapping("TCP", 4, HOST, 1, ""),
            PortMapping("TCP", 6, "192.0.2.77", 1, "kubernetes/shop/gone/http"),  # not a node of the cluster
        ]
        gateway = await lab.balancers.keeper.connect()
        for mapping in [*theirs, PortMapping("TCP", 5, HOST, 1, "kubernetes/shop/gone/http")]:
            await gateway.add(mapping, 0)
        await lab.poll()
        assert sorted(int(number) for _, number in lab.router.table) == [1, 2, 3, 4, 6]

    play(body)
