"""Tables of another size, with live connections: none of them is lost, no request fails, also after a crash at any step."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
from collections.abc import Iterator, Sequence

import pytest

from lbagent.bpf.compiler import builder
from lbagent.bpf.load import datapath
from lbagent.bpf.load.datapath import Datapath
from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run import resize, size_change
from lbagent.errors import KernelError, LayoutMismatch
from lbagent.maps import layout, pins
from lbagent.maps.flow_layout import FLOW_LAYOUT
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.lbmaps import backend_counter, service_counter
from lbagent.maps.specs import MapType, Sizes, counter_stripe_bytes, counter_stripes
from tests.e2e.cluster import Cluster
from tests.lab.agent import Agent
from tests.lab.netns import wait_for
from tests.lab.topology import Lab
from tests.lab.traffic import connect, request
from tests.maps.conftest import SMALL, pin_settings, private_bpffs, settings_of_layout

VIP4, VIP6 = "10.96.0.10", "fd00:96::10"
pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.early]
# Programs are verified in seconds of processor time, and under other work that can be minutes; what hangs is found all the same.
PROGRAMS_S = 600
PATIENCE_S = 60  # for an answer: a packet that is lost is missed for good, or seen as a SYN that was sent again


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(tag="rs-") as lab:
        lab.serve_all()
        yield lab


class Connections:
    """Open connections that send repeated requests, which must always reach their first backend."""

    def __init__(self, lab: Lab, count: int, vips: Sequence[str] = (VIP4, VIP6)) -> None:
        self.open: list[tuple[socket.socket, str]] = []
        with lab.client.entered():
            for _, vip in zip(range(count), itertools.cycle(vips)):
                sock = connect(vip, 80, timeout_s=PATIENCE_S)
                self.open.append((sock, request(sock).decode()))

    def ask_all(self) -> None:
        for sock, first in self.open:
            assert request(sock).decode() == first

    def close(self) -> None:
        for sock, _ in self.open:
            sock.close()


def sizes_of(lab: Lab) -> Sizes:
    with KernelMaps.open(lab.bpffs, create=False) as maps:
        return maps.sizes


def serving(lab: Lab, attach: str, *arguments: str) -> Cluster:
    cluster = Cluster(lab, attach, arguments)
    cluster.web().write(cluster.folder)
    cluster.dns().write(cluster.folder)
    cluster.agent.start()
    return cluster


def test_counters_go_along_when_there_are_more_backends() -> None:
    few, many = Sizes(backends=1 << 10, flow4=16, flow6=16), Sizes(backends=1 << 11, flow4=16, flow6=16)
    with unpinned(few) as old, unpinned(many) as new, unpinned(few) as back:
        indexes = (1, service_counter(7), backend_counter(1023))
        for n, index in enumerate(indexes, 1):
            row = counter_stripe_bytes(few)
            for cpu in range(counter_stripes(few)):
                with old.window("lb_metrics", cpu * row + 16 * index, 16) as cell:
                    cell[:] = layout.LB_COUNTER.pack(n, 100 * n)
        before = old.counters(indexes)
        assert before[2][0] == 3 * counter_stripes(few)
        size_change._copy(old, new, new.specs["lb_metrics"])
        assert new.counters([*indexes, backend_counter(2047)]) == [*before, (0, 0)]
        size_change._copy(new, back, back.specs["lb_metrics"])
        assert back.counters(indexes) == before


def test_tables_of_another_layout_are_not_touched() -> None:
    """An interrupted change of sizes stays as it is, for the version that began it."""
    with private_bpffs() as bpffs:
        KernelMaps.open(bpffs, SMALL).close()
        pin_settings(bpffs, settings_of_layout(FLOW_LAYOUT + 1))
        stage = pins.pin_dir(bpffs) / resize.STAGE
        stage.mkdir()
        with pytest.raises(LayoutMismatch, match="lbagent cleanup"):
            resize.resize_at_start(bpffs, SMALL, lambda: pytest.fail("built"), ProgramSettings())
        assert stage.is_dir()
        stage.rmdir()


@contextlib.contextmanager
def unpinned(sizes: Sizes) -> Iterator[KernelMaps]:
    fds: dict[str, int] = {}
    try:
        for name, spec in pins.all_specs(sizes).items():
            nested = spec.type is MapType.HASH_OF_MAPS
            fds[name] = pins.create_map(spec, fds["lb_maglev_inner"] if nested else 0)
        yield KernelMaps("", sizes, fds)
    finally:
        pins.close_all(fds)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two generations of programs a step: many minutes on a machine with other work
@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_sighup_changes_sizes_under_load(lab: Lab, attach: str) -> None:
    config = lab.folder / "agent.yaml"
    config.write_text("flow-table-size: 65536\n")  # room for what the load leaves behind in a UDP time-out
    cluster = serving(lab, attach, "--config", str(config))
    before = cluster.agent.dump()
    with contextlib.closing(Connections(lab, 40)) as connections, cluster.load(timeout_s=PATIENCE_S) as load:
        for size in (131072, 262144, 65536):
            config.write_text(f"flow-table-size: {size}\nsnat-table-size: 262144\nsnat6-table-size: 131072\n")
            load.wait_more(50)
            assert cluster.agent.process is not None
            cluster.agent.process.send_signal(signal.SIGHUP)
            wait_for(lambda size=size: sizes_of(lab).flow4 == size, "the new size", PROGRAMS_S)
            load.wait_more(100)
            connections.ask_all()
    assert load.tally.failures == []
    assert load.tally.syns_again == 0, "a packet was lost"
    assert cluster.agent.dump() == before
    assert not [text for text in cluster.agent.json("status")["problems"] if "keep" in text]
    assert not (lab.bpffs / "v1" / "resize").exists()
    sizes = next(m for m in cluster.agent.json("status")["maps"] if m["name"] == "lb4_flow")
    assert sizes["size"] == 65536


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two generations of programs a step: many minutes on a machine with other work
def test_a_start_with_other_sizes_keeps_connections(lab: Lab) -> None:
    cluster = serving(lab, "tc", "--flow-table-size", "16384")
    before = cluster.agent.dump()
    with contextlib.closing(Connections(lab, 20)) as connections:
        for arguments in (
            ["--flow-table-size", "8192", "--snat-table-size", "65536", "--snat6-table-size", "32768"],
            ["--flow-table-size", "65536"],
            [
                "--flow-table-size",
                "32768",
                "--snat-table-size",
                "65536",
                "--max-backends",
                "1024",
                "--max-service-slots",
                "4096",
            ],
        ):
            # a table has to hold every flow of the last two minutes
            with cluster.load(pause_s=0.02, timeout_s=PATIENCE_S) as load:
                load.wait_more(30)
                cluster.agent.stop()
                cluster.agent = Agent(lab, cluster.folder, attach="tc", arguments=arguments)
                cluster.agent.start()
                load.wait_more(30)
            assert load.tally.failures == [], f"{arguments}\n{cluster.agent.tail(12)}"
            assert load.tally.syns_again == 0
            connections.ask_all()
            assert str(sizes_of(lab).flow4) == arguments[1]
            assert cluster.agent.dump() == before
    assert sizes_of(lab).backends == 1024


def test_sizes_that_cannot_hold_what_is_there_stay_and_are_named(lab: Lab) -> None:
    few_ports = [
        "--snat-ports",
        "1024-2047",
    ]  # each has a slot of its own: with more of them there are never 1,024 slots
    cluster = serving(lab, "tc", "--flow-table-size", "16384", *few_ports)
    with contextlib.closing(Connections(lab, 300, [VIP4])) as connections:  # of two backends surely two in one slot
        sizes = sizes_of(lab)
        cluster.agent.stop()
        cluster.agent = Agent(lab, cluster.folder, attach="tc", arguments=["--flow-table-size", "1024", *few_ports])
        cluster.agent.start()
        assert sizes_of(lab).flow4 == 1024
        assert sizes_of(lab).snat4 == sizes.snat4
        assert [text for text in cluster.agent.json("status")["problems"] if "lb4_snat keeps its 16384 entries" in text]
        connections.ask_all()
        cluster.agent.stop()
        cluster.agent = Agent(lab, cluster.folder, attach="tc", arguments=["--maglev-table-size", "251", *few_ports])
        cluster.agent.start(wait=False)
        assert cluster.agent.process is not None
        assert cluster.agent.process.wait(PROGRAMS_S) == 1
        assert "maglev" in cluster.agent.tail()
        connections.ask_all()


# where it dies: before the n-th time it comes to this
STEPS = [
    (pins, "create_map", 2),
    (datapath, "load", 2),
    (size_change.SizeChange, "_mark", 1),
    (Datapath, "install", 1),
    (size_change, "migrate_flows", 1),
    (Datapath, "install", 2),
    (size_change.SizeChange, "_mark", 2),
    (size_change, "exchange_pins", 1),
]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two generations of programs a step: many minutes on a machine with other work
def test_dying_at_any_step_costs_nothing(lab: Lab) -> None:
    cluster = serving(
        lab, "tc", "--flow-table-size", "4096", "--snat-table-size", "65536", "--snat6-table-size", "32768"
    )
    cluster.agent.stop()
    with contextlib.closing(Connections(lab, 20)) as connections:
        for owner, name, turn in STEPS:
            sizes = sizes_of(lab)
            wanted = Sizes(**{**vars(sizes), "flow4": sizes.flow4 ^ 0x3000, "flow6": sizes.flow6 ^ 0x1800})
            die(lab, wanted, owner, name, turn)
            connections.ask_all()
            connections.open += Connections(lab, 2).open  # new flows, under whatever is in force now
            lab.node.call(resize.resize_at_start, str(lab.bpffs), wanted, builder.ensure_artifact, ProgramSettings())
            assert sizes_of(lab) == wanted
            assert not (lab.bpffs / "v1" / "resize").exists()
            connections.ask_all()


def die(lab: Lab, wanted: Sizes, owner: object, name: str, turn: int) -> None:
    """Begin a change in a process that is killed before the n-th execution of a step."""
    process = os.fork()
    if not process:
        with contextlib.suppress(BaseException):
            change_and_die(lab, wanted, owner, name, turn)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


def change_and_die(lab: Lab, wanted: Sizes, owner: object, name: str, turn: int) -> None:
    count = itertools.count(1)
    real = getattr(owner, name)

    def mortal(*args: object, **kwargs: object) -> object:
        if next(count) == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(owner, name, mortal)
    lab.node.call(resize.resize_at_start, str(lab.bpffs), wanted, builder.ensure_artifact, ProgramSettings())


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two generations of programs a step: many minutes on a machine with other work
def test_a_change_that_fails_half_way_is_finished_without_a_restart(lab: Lab) -> None:
    """By the agent itself, some seconds later; then there is a way back as well."""
    config = lab.folder / "agent.yaml"
    config.write_text("flow-table-size: 65536\n")
    cluster = Cluster(lab, "tc", ("--config", str(config)))
    cluster.web().write(cluster.folder)
    cluster.dns().write(cluster.folder)
    cluster.agent.start(module="tests.agent.clumsy")
    process = cluster.agent.process
    assert process is not None
    with contextlib.closing(Connections(lab, 20)) as connections, cluster.load(timeout_s=PATIENCE_S) as load:
        config.write_text("flow-table-size: 131072\n")
        load.wait_more(50)
        process.send_signal(signal.SIGHUP)
        for failures in (1, 2):  # before the second one the agent has looked at its links and pins
            wait_for(
                lambda n=failures: cluster.agent.log.read_text().count("will_retry=true") >= n,
                "the failure",
                PROGRAMS_S,
            )
            connections.open += Connections(lab, 4).open  # new flows, most likely while both kinds of maps are in use
        wait_for(lambda: not (lab.bpffs / "v1" / "resize").exists(), "the end of the change", PROGRAMS_S)
        connections.ask_all()
        assert sizes_of(lab).flow4 == 131072
        config.write_text("flow-table-size: 65536\n")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: sizes_of(lab).flow4 == 65536, "the old size", PROGRAMS_S)
        load.wait_more(50)
        connections.ask_all()
    assert load.tally.failures == []
    assert load.tally.syns_again == 0
    assert not any("half done" in text for text in cluster.agent.json("status")["problems"])
    text = cluster.agent.log.read_text()
    assert "link-detached" not in text, "the agent attached the programs that use both kinds of maps"
    assert "pin-missing" not in text
    assert process.poll() is None


@pytest.mark.slow
@pytest.mark.timeout(1800)  # three generations of programs: many minutes on a machine with other work
def test_while_a_change_is_half_done_both_tables_are_swept(lab: Lab) -> None:
    """Flows of both are counted, and end with their frontend."""
    config = lab.folder / "agent.yaml"
    config.write_text("flow-table-size: 65536\n")
    cluster = Cluster(lab, "tc", ("--config", str(config), "--sweep-interval", "1"))
    cluster.web("b1").write(cluster.folder)
    cluster.dns("b1").write(cluster.folder)  # a folder without any object is not believed
    cluster.agent.start(module="tests.agent.clumsy", env={"CLUMSY_FAILURES": "1000"})

    def flows() -> int:
        return sum(each["flows"] or 0 for each in cluster.agent.json("backend", "list"))

    with contextlib.closing(Connections(lab, 6)) as old:
        config.write_text("flow-table-size: 131072\n")
        assert cluster.agent.process is not None
        cluster.agent.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "will_retry=true" in cluster.agent.log.read_text(), "the failure", PROGRAMS_S)
        with contextlib.closing(Connections(lab, 10)) as new:
            wait_for(lambda: flows() == 16, "the flows of both tables", PROGRAMS_S)
            used = {each["name"]: each for each in cluster.agent.json("status")["maps"]}["lb4_flow"]
            assert (used["used"], used["size"]) == (8, 65536 + 131072)
            (cluster.folder / "web.yaml").unlink()
            wait_for(lambda: not any(map(lives, (*old.open, *new.open))), "the end of their connections", PROGRAMS_S)


def lives(connection: tuple[socket.socket, str]) -> bool:
    """Send one more request on a connection."""
    try:
        return bool(request(connection[0]))
    except OSError:
        return False


def test_without_memory_the_old_sizes_serve_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = serving(lab, "tc", "--flow-table-size", "4096")
    cluster.agent.stop()
    sizes = sizes_of(lab)
    count = itertools.count()
    real = pins.create_map

    def full(*args: object) -> int:
        if next(count) == 2:
            raise KernelError("create", 12, "map lb4_snat")
        return real(*args)  # type: ignore[arg-type]

    with contextlib.closing(Connections(lab, 4)) as connections:
        monkeypatch.setattr(pins, "create_map", full)
        wanted = Sizes(**{**vars(sizes), "flow4": 1 << 14, "flow6": 1 << 13, "snat4": 1 << 14})
        outcome = lab.node.call(
            resize.resize_at_start, str(lab.bpffs), wanted, builder.ensure_artifact, ProgramSettings()
        )
        assert outcome.sizes == sizes_of(lab) == sizes
        assert "lb4_snat" in outcome.problems["map sizes"]
        assert not (lab.bpffs / "v1" / "resize").exists()
        connections.ask_all()
