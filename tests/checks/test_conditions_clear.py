"""Every condition holds while its cause does, and ends when the cause is gone: a row for each name.

Rows of the running agent are generators: the cause, a yield, the cause taken away. All of a group are caused side by side, in one
agent. Rows of a single check do the same with the real part that the check reads; where a time is over only after a minute, its clock
is set.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any

import pytest

from lbagent.bpf.run import sweep
from lbagent.bpf.run.sweep import Sweeper
from lbagent.checks.condition_monitor import ConditionMonitor
from lbagent.errors import LbError, MapFull
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.maps.reasons import Reason
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.check import Check, CheckGroup, Finding, Result
from lbagent.model.handshakes import Handshakes
from lbagent.model.path_info import PathInfo
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.net.snapshot import Link
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.targets.bpf.checks import drop_checks, path_checks
from lbagent.targets.bpf.send_watch import SendWatch
from lbagent.targets.data_plane import SelfTestResult
from lbagent.testing.snapshot_target import SnapshotTarget
from tests.agent.conftest import Box, endpoints, service, web
from tests.agent.test_broken import Patient, detach
from tests.checks.looking import Look, conditions
from tests.lab import netns
from tests.lab.netns import run, veth, wait_for
from tests.net.builders import network as node_network
from tests.sync.rig import SMALL, FixedPaths, ListSource, make, make_loop, running

WITHIN_S = 60.0  # what has ended is shown for half a minute
Row = Callable[[Patient], Generator[None]]
AGENT_ROWS: list[dict[str, Row]] = [{}, {}]  # two groups: what the second does would hide the first
CHECK_ROWS: dict[str, Callable[[Any], Any]] = {}


def of_agent(name: str, group: int = 0) -> Callable[[Row], Row]:
    def add(row: Row) -> Row:
        AGENT_ROWS[group][name] = row
        return row

    return add


def of_check(name: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def add(row: Callable[[Any], Any]) -> Callable[[Any], Any]:
        CHECK_ROWS[name] = row
        return row

    return add


def test_every_name_has_a_row() -> None:
    """A new one needs its cause, and the cause taken away."""
    rows = [*AGENT_ROWS[0], *AGENT_ROWS[1], *CHECK_ROWS]
    assert sorted(rows) == sorted(check.name for check in conditions())


# --- in a running agent ---


def serving(patient: Patient, name: str, vip: str, *addresses: str, **spec: Any) -> Iterator[None]:
    """A Service that is written, and deleted."""
    patient.box.write(f"{name}.json", service(name, vip, **spec), endpoints(name, *addresses))
    yield
    (patient.box.manifests / f"{name}.json").unlink()


@of_agent("next-hop-unresolved")
def a_dead_endpoint(patient: Patient) -> Generator[None]:
    yield from serving(patient, "dead", "10.96.1.1", "10.7.0.77")


@of_agent("backend-check-fails")
def a_backend_that_refuses_its_check(patient: Patient) -> Generator[None]:
    made = service("probed", "10.96.1.30")
    made["metadata"] |= {"annotations": {"lbagent.io/health-check": "tcp:9 interval=200ms timeout=100ms"}}
    patient.box.write("probed.json", made, endpoints("probed", "10.8.0.2"))
    yield
    (patient.box.manifests / "probed.json").unlink()


@of_agent("health-panic")
def all_backends_refuse_their_check(patient: Patient) -> Generator[None]:
    made = service("panicking", "10.96.1.31")
    made["metadata"] |= {"annotations": {"lbagent.io/health-check": "tcp:9 interval=200ms timeout=100ms"}}
    patient.box.write("panicking.json", made, endpoints("panicking", "10.8.0.2"))
    yield
    (patient.box.manifests / "panicking.json").unlink()


@of_agent("path-unusable")
def an_endpoint_without_a_way(patient: Patient) -> Generator[None]:
    patient.box.node.ip("route add unreachable 198.51.100.0/24")
    yield from serving(patient, "dark", "10.96.1.2", "198.51.100.9")


@of_agent("device-not-attached")
def an_endpoint_behind_a_device_without_programs(patient: Patient) -> Generator[None]:
    veth(patient.box.node, "eth2", patient.box.peer, "eth2")
    patient.box.node.ip("addr add 10.9.0.1/24 dev eth2")
    patient.box.peer.ip("addr add 10.9.0.2/24 dev eth2")
    yield from serving(patient, "aside", "10.96.1.3", "10.9.0.2")


@of_agent("neighbours-not-kept")
def more_endpoints_than_are_kept_resolved(patient: Patient) -> Generator[None]:
    many = [f"10.8.{number >> 8}.{number & 255}" for number in range(10, 560)]
    yield from serving(patient, "many", "10.96.1.4", *many)


@of_agent("map-nearly-full")
def source_ranges(patient: Patient) -> Generator[None]:
    ranges = [f"203.0.{number}.0/24" for number in range(240)]
    more = {"type": "LoadBalancer", "loadBalancerSourceRanges": ranges}
    patient.box.write(
        "ranges.json",
        service("ranges", "10.96.1.5", **more) | {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.5"}]}}},
        endpoints("ranges", "10.7.0.2"),
    )
    yield
    (patient.box.manifests / "ranges.json").unlink()


@of_agent("port-not-open")
def a_health_check_node_port_that_is_taken(patient: Patient) -> Generator[None]:
    with contextlib.ExitStack() as closing:
        with patient.box.node.entered():
            taken = closing.enter_context(socket.create_server(("10.7.0.1", 30999)))
        assert taken.fileno() > 0
        more = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30999}
        yield from serving(patient, "checked", "10.96.1.6", "10.7.0.2", **more)


@of_agent("objects-mismatch")
def a_port_that_no_slice_has(patient: Patient) -> Generator[None]:
    other = endpoints("odd", "10.7.0.2")
    other["ports"][0]["name"] = "https"
    patient.box.write("odd.json", service("odd", "10.96.1.7"), other)
    yield
    (patient.box.manifests / "odd.json").unlink()


@of_agent("frontend-contested")
def an_externalip_that_is_the_clusterip_of_another_service(patient: Patient) -> Generator[None]:
    yield from serving(patient, "taker", "10.96.1.8", "10.7.0.2", externalIPs=["10.96.0.10"])


@of_agent("objects-refused")
def a_file_that_does_not_parse(patient: Patient) -> Generator[None]:
    (patient.box.manifests / "bad.json").write_text("{")
    yield
    (patient.box.manifests / "bad.json").unlink()


@of_agent("copies-not-written")
def a_full_state_folder(patient: Patient) -> Generator[None]:
    (folder,) = (patient.box.folder / "state" / "manifests").iterdir()
    run("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder))
    try:
        many = [service(f"copied{number}", f"10.96.2.{number}") for number in range(40)]
        patient.box.write("copied.json", *many)
        yield
    finally:
        run("umount", str(folder))


@of_agent("forwarding-off")
def no_forwarding(patient: Patient) -> Generator[None]:
    patient.box.node.sysctl("ipv4/ip_forward", 0)
    yield
    patient.box.node.sysctl("ipv4/ip_forward", 1)


@of_agent("reverse-path-strict")
def a_strict_reverse_path_filter(patient: Patient) -> Generator[None]:
    patient.box.node.sysctl("ipv4/conf/eth1/rp_filter", 1)
    yield
    patient.box.node.sysctl("ipv4/conf/eth1/rp_filter", 0)


@of_agent("snat-address-missing")
def a_source_address_that_is_gone(patient: Patient) -> Generator[None]:
    patient.box.node.ip("addr del 10.7.0.9/24 dev eth0")
    yield
    patient.box.node.ip("addr add 10.7.0.9/24 dev eth0")


@of_agent("setting-not-in-force")
def a_bad_configuration(patient: Patient) -> Generator[None]:
    config = patient.box.folder / "c.yaml"
    good = config.read_text()

    def reload(text: str) -> None:
        config.write_text(text)
        assert patient.agent.process is not None
        patient.agent.process.send_signal(signal.SIGHUP)

    reload("log-format: xml\n")
    yield
    reload(good)


@of_agent("link-detached", 1)
def a_link_that_is_detached(patient: Patient) -> Generator[None]:
    detach(patient.pins / "link" / "eth0-tc_egress")
    wait_for(
        lambda: patient.conditions("link-detached"), "the condition, before others have links made again", WITHIN_S
    )
    yield


@of_agent("pin-missing", 1)
def a_pin_that_is_removed(patient: Patient) -> Generator[None]:
    (patient.pins / "lb6_service").unlink()
    wait_for(lambda: patient.conditions("pin-missing"), "the condition, before others have pins made again", WITHIN_S)
    yield


@of_agent("source-untrusted", 1)
def no_folder(patient: Patient) -> Generator[None]:
    aside = patient.box.folder / "aside"
    patient.box.manifests.rename(aside)
    yield
    aside.rename(patient.box.manifests)


@of_agent("state-dir-unusable", 1)
def a_file_in_the_place_of_the_state_folder(patient: Patient) -> Generator[None]:
    state, aside = patient.box.folder / "state", patient.box.folder / "state.aside"
    state.rename(aside)
    state.write_text("mine")
    yield
    state.unlink()
    aside.rename(state)


@of_agent("device-missing", 1)
def a_device_that_is_renamed(patient: Patient) -> Generator[None]:
    node = patient.box.node
    node.ip("link set eth1 down", "link set eth1 name lan1", "link set lan1 up")
    yield
    node.ip("link set lan1 down", "link set lan1 name eth1", "link set eth1 up")


@of_agent("bpffs-unmounted", 1)
def no_bpf_file_system(patient: Patient) -> Generator[None]:
    run("umount", "-l", str(patient.box.bpffs.parent))
    yield


@pytest.fixture
def patient() -> Iterator[Patient]:
    """A box with two devices, and an agent in it that has whatever the rows break."""
    netns.sweep()
    box = Box()
    try:
        veth(box.node, "eth1", box.peer, "eth1")
        box.node.ip("addr add 10.8.0.1/16 dev eth1", "addr add 10.7.0.9/24 dev eth0")
        box.write("web.json", *web("10.7.0.2"))
        (box.folder / "c.yaml").write_text("log-format: text\n")
        more = ["--config", str(box.folder / "c.yaml"), "--snat-address", "10.7.0.9", "--max-source-ranges", "256"]
        box.agent = box.make_agent(*more, "--healthz-bind-address", "127.0.0.1:0", "--node-ip", "10.7.0.1")
        box.agent.attach, box.agent.devices = "tc", ["eth0", "eth1"]
        box.agent.start()
        one = Patient(box)
        copies = box.folder / "state" / "manifests"
        wait_for(lambda: list(copies.rglob("web.json")), "a copy of the manifest", WITHIN_S)
        one.recovers()
        yield one
    finally:
        box.closing.close()


@pytest.mark.root
@pytest.mark.bpf
@pytest.mark.parametrize("group", [0, 1])
def test_a_condition_ends_with_its_cause(patient: Patient, group: int) -> None:
    rows = {name: row(patient) for name, row in AGENT_ROWS[group].items()}
    with contextlib.ExitStack() as closing:
        if group == 1:
            closing.callback(_mount_again, patient.box)
        for row in rows.values():
            closing.callback(row.close)
            next(row)
        wait_for(lambda: rows.keys() <= _names(patient), f"all of {sorted(rows)}", WITHIN_S)
        for row in rows.values():
            assert next(row, "over") == "over"
        wait_for(lambda: not rows.keys() & _names(patient), "all of them to end", WITHIN_S)
        wait_for(lambda: not patient.conditions(), "health", WITHIN_S)
        if group == 1:
            patient.agent.remove()


def _names(patient: Patient) -> set[str]:
    return {each["name"] for each in patient.conditions()}


def _mount_again(box: Box) -> None:
    """The agent mounted one of its own, over the folder of its pins; the box takes away the one that it made."""
    subprocess.run(["umount", "-l", str(box.bpffs)])
    run("mount", "-t", "bpf", "bpf", str(box.bpffs.parent))


# --- a check alone ---


async def ended(check: Callable[[Any], Any], components: Any, end: Callable[[], Any]) -> list[list[Finding]]:
    """Return what a check finds with the cause, and without."""
    before = list(check(components))
    await result if hasattr(result := end(), "__await__") else None
    return [before, list(check(components))]


@of_check("sweep-failed")
async def a_program_that_cannot_run(_: Any) -> Any:
    reading, writing = os.pipe()  # of no program
    force: list[Any] = [({"sweep4": reading, "sweep6": reading}, SMALL)]
    sweeper = Sweeper(MemoryMaps(SMALL), lambda: force, 0.0)
    await sweeper.turn()
    os.close(reading)
    os.close(writing)

    async def end() -> None:
        force.clear()
        await sweeper.turn()

    return await ended(Look("sweep-failed"), Some(sweeper=sweeper), end)


@of_check("table-overflows")
async def a_table_without_room(monkeypatch: Any) -> Any:
    now = 1000.0
    monkeypatch.setattr(sweep.time, "monotonic", lambda: now)
    maps = Counting()
    sweeper = Sweeper(maps, list, 0.0)  # type: ignore[arg-type]
    await sweeper.turn()
    maps.packets[Reason.FWD_NO_STATE] = 5
    await sweeper.turn()

    async def end() -> None:
        nonlocal now
        now += 61
        await sweeper.turn()

    return await ended(Look("table-overflows"), Some(sweeper=sweeper), end)


@of_check("drops-grow")
async def packets_that_are_dropped(monkeypatch: Any) -> Any:
    now = 1000.0
    monkeypatch.setattr(drop_checks.time, "monotonic", lambda: now)
    maps, check = Counting(), Look("drops-grow")
    components = Some(maps=maps)
    list(check(components))
    maps.packets[Reason.DROP_NO_NEIGHBOR] = 5

    def end() -> None:
        nonlocal now
        for _ in range(12):
            now += 3
            list(check(components))

    return await ended(check, components, end)


@of_check("frames-not-taken")
async def frames_that_a_device_refuses(monkeypatch: Any) -> Any:
    now = 1000.0
    monkeypatch.setattr(path_checks.time, "monotonic", lambda: now)
    watch, link = SendWatch(lambda: None), Link(9, "eth9", b"\2" * 6, 1500, True)
    watch.errors[9], watch._last[9] = Some(frames=3, errno=0, text=""), now  # type: ignore[assignment]
    network = Some(frames_not_taken=lambda at: watch.problems({9: link}, at))

    def end() -> None:
        nonlocal now
        now += 120

    return await ended(Look("frames-not-taken"), Some(follower=network), end)


@of_check("selftest-failed")
async def a_tail_call_that_is_missing(_: Any) -> Any:
    plane = Some(self_test=SelfTestResult("slot 3 of lb_calls_tc (slow_path4) is empty", 1))
    return await ended(Look("selftest-failed"), plane, lambda: setattr(plane, "self_test", SelfTestResult("", 2)))


@of_check("backend-refuses")
async def a_backend_that_refuses(_: Any) -> Any:
    backend = Backend(1, L3n4Addr.parse("10.0.0.1:80"))
    found = [(backend, 3, Handshakes(refused=2, lost=1, failing=3))]
    components = Some(handshake_watch=Some(failing=lambda: found))
    return await ended(Look("backend-refuses"), components, found.clear)


@of_check("snat-ports-short")
async def a_backend_with_too_many_flows(_: Any) -> Any:
    backend = Backend(1, L3n4Addr.parse("10.0.0.1:80"))
    state = State(1, (SVC(L3n4Addr.parse("10.96.0.1:80"), 7, ServiceName("a", "b"), selectable=(backend,)),))
    live = {1: 950}
    components = Some(
        sweeper=Some(live={}, held=live),
        config=Some(snat_port_range=(1, 1000)),
        follower=Some(network=node_network(), path=lambda _: PathInfo()),
        state=state,
        extra_snat_addresses=lambda _: [],
    )
    return await ended(Look("snat-ports-short"), components, lambda: live.update({1: 5}))


@of_check("announcing-failed")
async def a_map_of_addresses_that_is_full(_: Any) -> Any:
    from tests.announce.test_announcer import VIP, World

    class Refusing(MemoryMaps):
        is_full = False

        def put_many(self, name: str, rows: Any) -> None:
            if self.is_full:
                raise MapFull("write", 7, name)
            super().put_many(name, rows)

    maps = Refusing()
    world = World(maps)
    maps.is_full = True
    world.serve(VIP)
    world.run(1)

    def end() -> None:
        maps.is_full = False
        world.run(25)

    return await ended(Look("announcing-failed"), Some(announcer=world.announcer), end)


@of_check("address-conflict")
async def a_stranger_that_claims_an_address(_: Any) -> Any:
    from tests.announce.test_announcer import IFINDEX, STRANGER, VIP, AddressSighting, World

    world = World()
    world.serve(VIP)
    world.run(20)
    for _ in range(4):
        world.announcer._on_sighting(IFINDEX, AddressSighting(VIP, STRANGER))
        world.run(0.5)
    return await ended(Look("address-conflict"), Some(announcer=world.announcer), lambda: world.run(66))


@of_check("node-dead")
async def a_node_without_power(_: Any) -> Any:
    world = _nodes()
    world.others_suspect("n4")
    world.run(1)
    return await ended(Look("node-dead"), Some(liveness=world.liveness), lambda: _answer(world))


@of_check("node-panic")
async def a_third_of_the_nodes(_: Any) -> Any:
    world = _nodes()
    world.others_suspect("n4", "n5", "n6", "n7")
    world.run(1)
    return await ended(Look("node-panic"), Some(liveness=world.liveness), lambda: _answer(world))


@of_check("liveness-failed")
async def an_address_that_is_gone(_: Any) -> Any:
    world = _nodes()
    world.own_addresses.clear()
    return await ended(
        Look("liveness-failed"), Some(liveness=world.liveness), lambda: world.own_addresses.append(bytes((10, 0, 0, 1)))
    )


def _nodes() -> Any:
    from tests.liveness.world import World as Nodes

    with tempfile.TemporaryDirectory() as folder:
        world = Nodes(9, Path(folder))
    world.run(3)
    return world


def _answer(world: Any) -> None:
    world.leases.of_others = {}
    world.run(1)


@of_check("objects-missed")
async def a_watch_that_stopped_silently(_: Any) -> Any:
    from tests.sync.test_object_verification import Relisting, verification
    from tests.sync.test_object_verification import service as of_list

    source = Relisting()
    loop, _, _ = make(MemoryMaps(SMALL), source)
    look, one = Look("objects-missed"), verification((source, loop, None))
    async with running(loop):
        source.first_list()
        source.put_unseen(of_list(1))
        await one.look()
        before = look(Some(verification=one))
        source.list_again(())
        await one.look()
        return before, look(Some(verification=one))


@of_check("target-failed")
async def a_target_without_room(_: Any) -> Any:
    class Full(SnapshotTarget):
        is_full = True

        async def write(self, state: State) -> None:
            if self.is_full:
                raise OSError(28, "No space left on device")

    other, source = Full("other"), ListSource()
    bpf = BpfTarget.open(MemoryMaps(SMALL), FixedPaths(), "me")
    loop = make_loop([source], bpf, other)
    async with running(loop):
        source.first_list()
        await loop.settled()

        async def end() -> None:
            other.is_full = False
            other.wake.set()
            await other.ready.wait()
            await loop.settled()

        return await ended(Look("target-failed"), Some(loop=loop, translating=[bpf]), end)


@of_check("check-failed")
async def a_check_that_fails(_: Any) -> Any:
    failing = [LbError("why")]

    def check(_context: Any) -> list[Result]:
        if failing:
            raise failing.pop()
        return []

    monitor = ConditionMonitor([CheckGroup([Check("failing", "whether", check)], None)])
    out = []
    for _ in range(2):
        await monitor.look()
        out.append([each.condition for each in monitor.standing])
    return out


@of_check("private-mount")
async def a_bpf_file_system_of_one_mount_namespace(tmp_path: Path) -> Any:
    return in_a_private_mount_namespace(tmp_path)


def in_a_private_mount_namespace(tmp_path: Path) -> Any:
    """In a process of its own, which leaves its mount namespace for none: there it mounts and unmounts."""
    script = f"""
        import subprocess
        from types import SimpleNamespace as Some
        from tests.checks.looking import Look, conditions
        check_mounts = Look("private-mount")
        folder = {str(tmp_path)!r}
        components = Some(config=Some(bpffs=folder), mounted_bpffs=True)
        subprocess.run(["mount", "-t", "bpf", "bpf", folder], check=True)
        print([each.name for each in check_mounts(components)])
        subprocess.run(["umount", folder], check=True)
        print([each.name for each in check_mounts(components)])
    """
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", textwrap.dedent(script)]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == ["['private-mount']", "[]"]
    return [[Finding("private-mount", "", "")], []]


class Counting(MemoryMaps):
    """Maps whose counters the test sets."""

    def __init__(self) -> None:
        super().__init__(SMALL)
        self.packets: dict[Any, int] = {}

    def counters(self, indexes: Any) -> list[tuple[int, int]]:
        return [(self.packets.get(index, 0), 0) for index in indexes]


@pytest.mark.root
@pytest.mark.parametrize("name", CHECK_ROWS, ids=str)
async def test_what_a_check_finds_ends_with_its_cause(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    takes_folder = name == "private-mount"
    before, after = await CHECK_ROWS[name](tmp_path if takes_folder else monkeypatch)
    assert [each.name for each in before] == [name]
    assert after == []
