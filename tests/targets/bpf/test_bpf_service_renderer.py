"""BPF behind the calls of the renderer API: the suites that every renderer passes, in a namespace with a bpf file system of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lbagent.bpf.load.attach import attached
from lbagent.config import Config
from lbagent.errors import ConfigError, Conflict, NotFound
from lbagent.maps.pins import pin_dir
from lbagent.model.family import Family
from lbagent.render import Interfaces, ServiceRenderer, renderer
from lbagent.render.service_calls import NOWHERE, ServiceCalls, View
from lbagent.resolve import Options
from lbagent.sources.folder.resolve_path import resolve_path
from lbagent.sync.target_protocol import ObjectFacts
from lbagent.targets.bpf.bpf_plane import BpfDataPlane
from lbagent.targets.nftables.nft_renderer import FEATURES
from lbagent.targets.nftables.nft_service_renderer import NftServiceRenderer
from lbagent.testing.renderer import RendererSuite, TortureSuite, World
from tests.e2e.cluster import WEB
from tests.lab import traffic
from tests.lab.manifests import Endpoint, Manifest
from tests.lab.netns import Namespace
from tests.lab.topology import Lab

pytestmark = [pytest.mark.root, pytest.mark.bpf]
DEVICES = ("eth0", "eth1", "bond0", "veth1", "cali1")
BPFFS = Path(f"/sys/fs/bpf/lbagent-calls-{os.getpid()}")  # of this worker
SETTINGS = {"bpffs": str(BPFFS), "attach": "tc"}


@pytest.fixture(scope="module", autouse=True)
def space() -> Iterator[Namespace]:
    made = Namespace("bpfcalls")
    try:
        made.ip(*(f"link add {name} type veth peer name {name}p" for name in DEVICES))
        made.ip(*(f"link set {name}{end} up" for name in DEVICES for end in ("", "p")))
        made.ip("addr add 192.0.2.10/24 dev eth0", "addr add 2001:db8:2::10/64 dev eth0 nodad")
        made.ip("route add default via 192.0.2.1", "route add default via 2001:db8:2::1")
        yield made
    finally:
        made.delete()
        if BPFFS.exists():
            BPFFS.rmdir()


@pytest.fixture(autouse=True)
def _inside(space: Namespace) -> Iterator[None]:
    """The test's thread lives in the namespace; what one test wrote is not there in the next."""
    with space.entered():
        yield
        asyncio.run(renderer("bpf", SETTINGS).close(keep=False))
    assert not BPFFS.exists() or not any(BPFFS.iterdir())


class TestCalls(RendererSuite):
    def make_renderer(self) -> ServiceRenderer:
        return renderer("bpf", SETTINGS)


class TestTorture(TortureSuite):
    sequences, kills = 3, 4

    def make_renderer(self) -> ServiceRenderer:
        return renderer("bpf", SETTINGS)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"colour": "red"}, "unknown setting 'colour'; there are family, artifact, attach"),
        ({"family": "ipx"}, "family=ipx: expected ipv4 or ipv6"),
        ({"attach": "sideways"}, "attach"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        renderer("bpf", settings)


@pytest.mark.parametrize("kept", [False, True], ids=["the first one", "a later one"])
def test_a_cancelled_flush_is_over_before_the_next_one(kept: bool) -> None:
    """However far it came: the next one, or `close`, neither fails nor finds devices that are half attached."""
    devices = (Interfaces(), Interfaces("eth0"), Interfaces("eth0", "eth1", "bond0"))

    async def test(made: ServiceRenderer, turns: int) -> None:
        await made.update_local_frontend_ifs(devices[0], devices[1])
        if kept:
            await made.flush()
        await made.update_local_frontend_ifs(devices[1], devices[2])
        cut = asyncio.create_task(made.flush())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        await made.flush()
        assert await asyncio.to_thread(devices_with_programs) == {"eth0", "eth1", "bond0"}
        await made.update_local_frontend_ifs(devices[2], devices[1])
        cut = asyncio.create_task(made.flush())
        await asyncio.sleep(0.001)
        cut.cancel()
        await made.close(keep=False)
        assert await asyncio.to_thread(devices_with_programs) == set()

    for turns in range(0, 12, 3 if kept else 4):
        asyncio.run(test(renderer("bpf", SETTINGS), turns))


def devices_with_programs() -> set[str]:
    """Return the devices to which a program is attached, by the links that the kernel has."""
    return {item.target.name for item in attached(pin_dir(BPFFS))}


async def put(made: ServiceRenderer, *families: Family) -> None:
    """Flush one Service with a ClusterIP of each family."""
    world = World(made.capabilities())
    world.put(1, [1], families=families)
    for call in world.calls():  # the last one is a flush
        await call.apply(made)


def test_a_first_start_that_fails_leaves_nothing() -> None:
    async def test() -> None:
        made = renderer("bpf", SETTINGS | {"device": "nodev0"})
        with pytest.raises(NotFound, match="nodev0"):
            await made.flush()
        await made.close(keep=True)

    asyncio.run(test())
    assert not BPFFS.exists() or not any(BPFFS.iterdir())


def test_a_defect_in_a_flush_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the tasks: what the flush waits for never comes. The next one begins again, and `close` removes everything."""

    async def broken(_plane: object, _desired: object) -> None:
        raise ZeroDivisionError("a defect")

    async def test() -> None:
        made = renderer("bpf", SETTINGS | {"device": "eth0"})
        await put(made, Family.IPV4)
        async with asyncio.timeout(10):
            with monkeypatch.context() as patch:
                patch.setattr(BpfDataPlane, "reconcile", broken)
                with pytest.raises(ZeroDivisionError, match="a defect"):
                    await put(made, Family.IPV6)
        await put(made, Family.IPV4, Family.IPV6)
        assert len(await made.dump()) > 1
        await made.close(keep=False)
        assert await asyncio.to_thread(devices_with_programs) == set()

    asyncio.run(test())


def test_close_removes_what_a_defect_between_flushes_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def broken(_plane: object) -> None:
        ended.set()
        raise ZeroDivisionError("a defect")

    async def test() -> None:
        monkeypatch.setattr(BpfDataPlane, "watch", broken)  # it begins when everything is in force
        made = renderer("bpf", SETTINGS | {"device": "eth0"})
        with suppress(ZeroDivisionError):
            await put(made, Family.IPV4)
        async with asyncio.timeout(10):
            await ended.wait()
        with suppress(ZeroDivisionError):
            await made.close(keep=False)
        assert await asyncio.to_thread(devices_with_programs) == set()

    asyncio.run(test())


@pytest.mark.parametrize("first", ["bpf", "nftables"])
def test_no_two_data_planes_translate_one_family(first: str) -> None:
    """Also where the process of the first one has ended; what it serves stays, and afterwards the other one may."""
    bpf = dict(SETTINGS, device="eth0")

    def make(name: str) -> ServiceRenderer:
        if name == "bpf":
            return renderer("bpf", bpf)
        return NftServiceRenderer(
            {}, FEATURES, Config(bpffs=str(BPFFS))
        )  # not the default folder, which all tests share

    async def test() -> None:
        second = {"bpf": "nftables", "nftables": "bpf"}[first]
        earlier, later = make(first), make(second)
        await put(earlier, Family.IPV4)
        lines = await earlier.dump()
        await earlier.close(keep=True)
        with pytest.raises(
            Conflict, match=f"data plane {first} is in force .*each packet of IPv4; nothing was changed"
        ):
            await put(later, Family.IPV4, Family.IPV6)
        assert await later.dump() == []
        earlier = make(first)
        assert await earlier.dump() == lines

        await put(later, Family.IPV6)  # no packet is translated twice
        with pytest.raises(Conflict, match="each packet of IPv6; nothing was changed"):
            await put(earlier, Family.IPV4, Family.IPV6)
        await earlier.close(keep=False)
        await put(later, Family.IPV4, Family.IPV6)
        await later.close(keep=False)

    asyncio.run(test())


def test_connections_are_served_until_everything_is_removed(tmp_path: Path) -> None:
    """By each family's frontend; `close(keep=True)` lets packets go on."""
    with Lab(tag="calls-") as lab:
        lab.serve_all()
        lab.node.ip("route add default via 10.77.0.2", "route add default via fd77::2")
        endpoints = [Endpoint(address) for each in lab.backends.values() for address in (each.ipv4, each.ipv6)]
        Manifest("web", WEB, endpoints).write(tmp_path)
        settings = {
            "bpffs": str(lab.bpffs), "attach": "tc", "device": "wan,lan1,lan2", "pod-device": "pod*",
        }  # fmt: skip
        facts = ObjectFacts(services_with_endpoints=frozenset({"e2e/web"}))
        calls = ServiceCalls(View()).to(resolve_path(str(tmp_path), Options("n1")).state, facts, NOWHERE)

        async def serve() -> set[str]:
            made = renderer("bpf", settings)
            for call in calls:
                await call.apply(made)
            await made.flush()
            found = await asyncio.to_thread(answers, lab)  # what follows the network runs in this loop
            with pytest.raises(Conflict):
                other = renderer("bpf", settings)
                await calls[0].apply(other)
                await other.flush()
            await made.close(keep=True)
            return found

        with lab.node.entered():
            assert asyncio.run(serve()) == {"b1", "b2", "b3"}
            assert answers(lab) == {"b1", "b2", "b3"}
            asyncio.run(renderer("bpf", settings).close(keep=False))
            with pytest.raises(OSError):
                answers(lab)


def answers(lab: Lab) -> set[str]:
    """Return who answers a client outside."""

    def ask() -> set[str]:
        return {traffic.http_get(vip, 80, timeout_s=5).backend for vip in WEB for _ in range(40)}

    with lab.client.entered():
        return ask()
