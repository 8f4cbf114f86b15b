"""Provider edge with a real miniupnpd: its list, the results of an outside client, and restarts of both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.cloud.edge.protocols.port_mapping import GatewayUnreachable
from lbagent.cloud.provider import CloudProvider, Refusal
from lbagent.testing.provider import CLUSTER, ProviderSuite
from tests.cloud.edge.edge_lab import ASKS, UPNP, EdgeLab, ask, manifest, play, port, serve, until
from tests.lab.router import HOST, HOST2, OTHER, WAN, Router, need_router

pytestmark = [pytest.mark.root]
FAST = UPNP + "poll: 1s\nlease: 60s\n"


@pytest.fixture(scope="class")
def one_router() -> Iterator[Router]:
    """One for a whole suite."""
    need_router()
    with Router("suite-") as router:
        router.start()
        yield router


class TestSuite(ProviderSuite):
    """The tests of every provider, on the LAN of a real router."""

    annotations = ASKS
    nodes = ("n1",)

    @pytest.fixture(autouse=True)
    def on_the_lan(self, one_router: Router) -> Any:
        with one_router.host.entered():
            yield

    def manifest(self, number: int) -> dict[str, Any]:
        return manifest(number, port("http", 8000 + number, 30000 + number))

    def make_provider(self) -> CloudProvider:
        from lbagent.cloud.edge.edge_provider import EdgeProvider

        return EdgeProvider(UPNP)


class TestSuiteOverNatPmp(TestSuite):
    def make_provider(self) -> CloudProvider:
        from lbagent.cloud.edge.edge_provider import EdgeProvider

        return EdgeProvider("protocols: [nat-pmp]")


@pytest.mark.parametrize("config", ["protocols: [upnp]", UPNP, "protocols: [nat-pmp]", ""])
def test_an_outside_client_reaches_the_service(router: Router, config: str) -> None:
    async def body(lab: EdgeLab) -> None:
        async with await serve(30001):
            assert await ask(router.outside, 80) == "refused"
            service = await lab.ensure(manifest(1))
            assert [each.ip for each in service.status.ingress] == [WAN]
            assert await ask(router.outside, 80) == "11.0.0.2"
            assert await lab.texts() == [f"80/TCP -> {HOST}:30001 kubernetes/shop/web-1/http"]
            await lab.delete(service)
            assert await ask(router.outside, 80) == "refused"
            assert await lab.texts() == []
            assert await lab.status(lab.cluster.set_status(service, None)) is None

    play(router, config, body)


async def until_answered(router: Router) -> None:
    for _ in range(100):
        if await ask(router.outside, 80) == "11.0.0.2":
            return
        await asyncio.sleep(0.2)
    raise AssertionError(router.log.read_text()[-2000:])


def test_upnp_off_leaves_nat_pmp(router: Router) -> None:
    router.kill()
    router.start(upnp=False)

    async def body(lab: EdgeLab) -> None:
        async with await serve(30001):
            await lab.ensure(manifest(1))
            assert await ask(router.outside, 80) == "11.0.0.2"
            await asyncio.sleep(5)  # a router that restarts sooner looks like one with a slow clock (RFC 6886 3.6)
            router.kill()
            router.start(upnp=False)
            await until_answered(router)

    play(router, "poll: 1s\nlease: 60s", body)


def test_ports_come_and_go_alone(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        ports = [port("http", 80, 30080), port("dns-tcp", 53, 30053), port("dns", 53, 30054, "UDP")]
        await lab.ensure(manifest(1, *ports))
        assert await lab.texts() == [
            f"53/TCP -> {HOST}:30053 kubernetes/shop/web-1/dns-tcp",
            f"80/TCP -> {HOST}:30080 kubernetes/shop/web-1/http",
            f"53/UDP -> {HOST}:30054 kubernetes/shop/web-1/dns",
        ]
        assert router.changes() == {"AddPortMapping": 3}
        await lab.ensure(manifest(1, *ports))
        assert router.changes() == {"AddPortMapping": 3}
        await lab.ensure(manifest(1, *ports[:2]))
        assert len(await lab.held()) == 2
        assert router.changes() == {"AddPortMapping": 3, "DeletePortMapping": 1}
        # another node port: in place; another name: the description changes too
        await lab.ensure(manifest(1, port("http", 80, 30081), ports[1]))
        assert router.changes() == {"AddPortMapping": 4, "DeletePortMapping": 1}
        await lab.ensure(manifest(1, port("web", 81, 30081), port("name", 53, 30053)))
        assert await lab.texts() == [
            f"53/TCP -> {HOST}:30053 kubernetes/shop/web-1/name",
            f"81/TCP -> {HOST}:30081 kubernetes/shop/web-1/web",
        ]

    play(router, UPNP, body)


def test_another_node(router: Router) -> None:
    """The router does not change the client in place: the mapping is removed and added."""
    router.kill()
    router.start(secure=False)

    async def body(lab: EdgeLab) -> None:
        await lab.ensure(manifest(1))
        nodes = lab.cluster.nodes
        other = [replace(nodes[0], addresses=(("InternalIP", HOST2),))]
        await lab.balancers.update(CLUSTER, lab.cluster.add(manifest(1)), other)
        assert await lab.texts() == [f"80/TCP -> {HOST2}:30001 kubernetes/shop/web-1/http"]

    play(router, UPNP + "node: first-ready", body)


def test_a_node_that_is_not_this_host_is_refused_without_a_call(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        await lab.ensure(manifest(1))
        before = router.changes()
        service = lab.cluster.add(manifest(1, port("http", 80, 30005)))
        far = [replace(lab.cluster.nodes[0], addresses=(("InternalIP", OTHER),))]
        with pytest.raises(
            Refusal, match=f"the local client \\({HOST}\\) cannot be used to set up mappings to {OTHER}"
        ):
            await lab.balancers.ensure(CLUSTER, service, far)
        with pytest.raises(Refusal, match="must be exactly 1"):
            await lab.balancers.ensure(CLUSTER, service, lab.cluster.nodes * 2)
        assert router.changes() == before

    play(router, UPNP, body)


def test_a_foreign_mapping_stays(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        foreign = await lab.add_foreign(80)
        service = lab.cluster.add(manifest(1, port("tls", 443, 30443), port("http", 80, 30080)))
        with pytest.raises(Refusal, match=f"80/TCP is mapped to {OTHER} already, for 'game'") as found:
            await lab.ensure(service)
        assert found.value.reason == "PortConflict"
        assert await lab.texts() == [f"{foreign} game"]  # none of both, then
        await lab.delete(service)
        assert await lab.texts() == [f"{foreign} game"]
        # of this very host, where the router would change it in place
        await lab.add_foreign(8080, "mine", HOST)
        with pytest.raises(Refusal, match="for 'mine'"):
            await lab.ensure(manifest(2, port("http", 8080, 30080)))
        assert len(await lab.held()) == 2

    play(router, UPNP, body)


def test_a_port_that_comes_free_is_taken_soon(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        foreign = await lab.add_foreign(80)
        with pytest.raises(Refusal):
            await lab.ensure(manifest(1))
        await asyncio.sleep(2.5)
        assert lab.cluster.synced == []
        await lab.forget(foreign)
        await until(lambda: lab.cluster.synced == ["shop/web-1"], "another look at the Service")
        await lab.ensure(manifest(1))
        with pytest.raises(Refusal, match="for 'kubernetes/shop/web-1/http'"):
            await lab.ensure(manifest(2))
        lab.cluster.synced.clear()
        await lab.delete(lab.cluster.add(manifest(1)))
        assert lab.cluster.synced == ["shop/web-2"]

    play(router, FAST, body)


def test_a_gateway_that_lost_power(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        async with await serve(30001):
            service = await lab.ensure(manifest(1))
            await until(lambda: lab.balancers.is_up, "a poll")
            router.kill()
            await until(lambda: not lab.balancers.is_up, "the loss")
            with pytest.raises(GatewayUnreachable, match="no gateway: upnp: "):
                await lab.ensure(service)
            lab.cluster.synced.clear()
            router.start()
            await until(lambda: lab.balancers.is_up, "the gateway")
            await until_answered(router)
            await until(lambda: lab.cluster.synced == ["shop/web-1"], "another try of what failed")
            (held,) = await lab.held()
            await lab.forget(held.mapping)  # as by a person at the router's own page
            assert await ask(router.outside, 80) == "refused"
            await until_answered(router)

    play(router, FAST, body)


@pytest.mark.slow
def test_a_lease_is_renewed_at_its_half(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        await lab.ensure(manifest(1))
        (held,) = await lab.held()
        assert 25 <= held.lease_s <= 30
        await until(lambda: router.changes()["AddPortMapping"] == 2, "the renewal")
        (held,) = await lab.held()
        assert 20 <= held.lease_s <= 30
        assert router.changes() == {"AddPortMapping": 2}

    play(router, UPNP + "poll: 1s\nlease: 30s", body)


def test_a_process_that_was_killed(router: Router) -> None:
    """The next one removes mappings that no Service requests any more, and changes nothing else."""

    async def body(lab: EdgeLab) -> None:
        for number in (1, 2, 3, 4):
            await lab.ensure(manifest(number, port("http", 8000 + number, 30000 + number)))
        await lab.add_foreign(80)
        await lab.add_foreign(
            81, "kubernetes/shop/web-9/http"
        )  # of another cluster with this name: not a node of this one
        await lab.end()
        lab.cluster.remove(lab.cluster.add(manifest(1)))
        lab.cluster.add(manifest(2, port("http", 8012, 30002)))
        refused = lab.cluster.add(manifest(3, port("http", 8013, 30003), sessionAffinity="ClientIP"))
        lab.cluster.add(manifest(4, port("http", 8004, 30004)))
        before = router.changes()["AddPortMapping"]
        other = await EdgeLab(router, FAST, lab.cluster).begin()
        await until(lambda: router.changes()["DeletePortMapping"] == 2, "the removals")
        await until(lambda: other.balancers.is_up and other.balancers._is_swept, "a poll")
        assert [text.split()[-1] for text in await other.texts()] == [
            "game",
            "kubernetes/shop/web-9/http",
            "kubernetes/shop/web-3/http",  # it keeps its mappings, and more are refused
            "kubernetes/shop/web-4/http",
        ]
        assert router.changes()["AddPortMapping"] == before
        with pytest.raises(Refusal, match="sessionAffinity ClientIP"):
            await other.ensure(refused)
        await other.end()

    play(router, FAST, body)


def test_the_annotation_goes(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        plain = lab.cluster.add(manifest(1, annotations={}))
        calls = router.changes()
        with pytest.raises(Refusal, match="no annotation") as found:
            await lab.ensure(plain)
        assert (found.value.reason, found.value.status, router.changes()) == ("LoadBalancerRefused", None, calls)
        await lab.ensure(manifest(1))
        assert len(await lab.held()) == 1
        with pytest.raises(Refusal) as found:
            await lab.ensure(manifest(1, annotations={}))
        assert found.value.status is not None
        assert found.value.status.ingress == ()
        assert await lab.held() == []
        # a new process deletes the router's mappings of the Service
        await lab.ensure(manifest(1))
        service = lab.cluster.add(manifest(1, annotations={}))
        await lab.end()
        other = await EdgeLab(router, UPNP, lab.cluster).begin()
        await other.delete(service)
        assert await other.held() == []
        await other.end()

    play(router, UPNP, body)


def test_deletion_without_a_gateway(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        service = await lab.ensure(manifest(1))
        assert router.process is not None
        router.process.kill()  # its mappings stay in the kernel, and in its lease file
        router.process.wait()
        await lab.delete(service)
        lab.cluster.remove(service)
        router.start()
        await until(lambda: router.changes()["DeletePortMapping"] == 1, "the removal")
        assert await lab.held() == []

    play(router, FAST, body)


def test_another_wan_address(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        service = await lab.ensure(manifest(1))
        lab.cluster.synced.clear()
        router.set_wan("11.0.1.1")
        await until(lambda: lab.cluster.synced == ["shop/web-1"], "another look at the Service")
        service = await lab.ensure(service)
        assert [each.ip for each in service.status.ingress] == ["11.0.1.1"]
        await asyncio.sleep(2.5)
        assert lab.cluster.synced == ["shop/web-1"]

    play(router, FAST, body)


def test_a_private_wan_address(router: Router) -> None:
    router.set_wan("100.64.0.1")

    async def body(lab: EdgeLab) -> None:
        with pytest.raises(Exception, match="has no WAN address, or does not report a private one"):
            await lab.ensure(manifest(1))
        lab.cluster.synced.clear()
        router.set_wan(WAN)
        await until(lambda: "shop/web-1" in lab.cluster.synced, "another try")
        await lab.ensure(manifest(1))

    play(router, FAST, body)


def test_a_port_that_the_routers_rules_forbid(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        with pytest.raises(Refusal, match="its rules do not allow this port.*error 606") as found:
            await lab.ensure(manifest(1, port("http", 80, 30080), port("far", 10000, 30001)))
        assert found.value.reason == "LoadBalancerRefused"
        assert await lab.held() == []

    play(router, UPNP, body)


def test_metrics_and_another_configuration(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        await lab.ensure(manifest(1, port("a", 80, 30080), port("b", 81, 30081)))
        await until(lambda: lab.balancers.is_up, "a poll")
        found = {family.name: [value for _, value in family.samples] for family in lab.provider.metrics()}
        assert found == {"lbagent_edge_mappings": [2], "lbagent_edge_gateway_up": [1.0]}
        lab.provider.reload(json.dumps({"externalIP": "203.0.113.9"}))
        assert lab.cluster.synced == ["shop/web-1"]
        service = await lab.ensure(manifest(1))
        assert [each.ip for each in service.status.ingress] == ["203.0.113.9"]

    play(router, UPNP, body)


BOTH = f"gateway: {Router.url}\npoll: 1s\nlease: 60s\n"


def restart(router: Router, *, upnp: bool) -> None:
    """End only the program and restart it: its mappings stay in the kernel and in its lease file."""
    assert router.process is not None
    router.process.kill()
    router.process.wait()
    router.start(upnp=upnp)


def test_upnp_is_used_again_when_it_answers_again(router: Router) -> None:
    """A mapping created by NAT-PMP in the meantime becomes one of UPnP, and is deleted with its Service."""
    restart(router, upnp=False)

    async def body(lab: EdgeLab) -> None:
        async with await serve(30001):
            service = await lab.ensure(manifest(1))
            assert lab.balancers.keeper.gateway is not None
            assert lab.balancers.keeper.gateway.protocol == "nat-pmp"
            assert await ask(router.outside, 80) == "11.0.0.2"
            restart(router, upnp=True)
            await until(lambda: router.changes()["AddPortMapping"], "the mapping by UPnP")
            assert lab.balancers.keeper.gateway.protocol == "upnp"
            await until_answered(router)
            assert await lab.texts() == [f"80/TCP -> {HOST}:30001 kubernetes/shop/web-1/http"]
            assert "PortConflict" not in lab.reasons()
            await lab.delete(service)
            assert await lab.texts() == []
            assert await ask(router.outside, 80) == "refused"

    play(router, BOTH, body)


@pytest.mark.parametrize("is_ensured", [True, False])
def test_what_an_earlier_process_mapped_by_nat_pmp_is_ours(router: Router, is_ensured: bool) -> None:
    restart(router, upnp=False)
    services = []

    async def before(lab: EdgeLab) -> None:
        services.append(await lab.ensure(manifest(1)))

    async def after(lab: EdgeLab) -> None:
        async with await serve(30001):
            (service,) = services
            assert await lab.texts() == [f"80/TCP -> {HOST}:30001 NAT-PMP 80 tcp"]
            assert await ask(router.outside, 80) == "11.0.0.2"
            if is_ensured:
                service = await lab.ensure(manifest(1))
                assert await lab.texts() == [f"80/TCP -> {HOST}:30001 kubernetes/shop/web-1/http"]
            await lab.delete(service)
            assert await lab.texts() == []
            assert await ask(router.outside, 80) == "refused"

    play(router, BOTH, before)
    restart(router, upnp=True)
    play(router, BOTH, after)


def test_what_another_program_mapped_by_nat_pmp_to_another_port_stays(router: Router) -> None:
    async def other(lab: EdgeLab) -> None:
        await lab.ensure(manifest(2, port("http", 80, 30002)))

    async def body(lab: EdgeLab) -> None:
        with pytest.raises(Refusal, match="NAT-PMP 80 tcp"):
            await lab.ensure(manifest(1))
        assert await lab.texts() == [f"80/TCP -> {HOST}:30002 NAT-PMP 80 tcp"]

    play(router, "protocols: [nat-pmp]", other)
    play(router, BOTH, body)


def test_a_mapping_by_upnp_goes_with_its_service_after_nat_pmp_was_used(router: Router) -> None:
    async def body(lab: EdgeLab) -> None:
        async with await serve(30001):
            service = await lab.ensure(manifest(1))
            await lab.end()  # no more polls: the removal itself uses UPnP
            restart(router, upnp=False)
            lab.balancers.keeper.lose()
            assert (await lab.balancers.keeper.connect()).protocol == "nat-pmp"
            restart(router, upnp=True)
            await lab.delete(service)
            assert await lab.texts() == []
            assert await ask(router.outside, 80) == "refused"

    play(router, BOTH, body)
