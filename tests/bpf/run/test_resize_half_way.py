"""New flows while a change of map sizes is half done: hooks with the old programs beside others with those that use both kinds
of maps, and SNAT ports of flows that have not moved yet."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from lbagent.bpf.compiler import builder
from lbagent.bpf.load import attach
from lbagent.bpf.load.device_attach import DeviceAttacher
from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run import resize
from lbagent.maps.kernel_maps import KernelMaps
from tests.agent import unhurried
from tests.e2e.cluster import Cluster
from tests.lab import traffic
from tests.lab.netns import wait_for
from tests.lab.topology import Lab

pytestmark = [pytest.mark.root, pytest.mark.bpf]
PORTS = range(1024, 5120)
BEFORE, AFTER = len(PORTS) * 3 // 4, 400  # flows; so many that the first 16 ports looked at are often all held
FEW = 2  # flows without a port: not all ports are looked at, and of 50 such runs one has a flow for which all of those are held
SIZES = "flow-table-size: 16384\nsnat-table-size: {}\n"
PROGRAMS_S = 600
VIPS = ("10.96.0.10", "fd00:96::10")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two generations of programs: many minutes on a machine with other work
def test_ports_of_flows_that_are_yet_to_move_are_passed_over() -> None:
    with Lab(tag="rp-") as lab:
        lab.serve_all()
        config = lab.folder / "agent.yaml"
        config.write_text(SIZES.format(len(PORTS)))
        cluster = Cluster(lab, "tc", ("--config", str(config), "--snat-ports", f"{PORTS[0]}-{PORTS[-1]}"))
        cluster.dns("b1").write(cluster.folder)
        cluster.agent.start(module="tests.agent.clumsy", env={"CLUMSY_FAILURES": "1000"})
        assert ask(lab, 20000, BEFORE) == []
        config.write_text(SIZES.format(2 * len(PORTS)))
        assert cluster.agent.process is not None
        cluster.agent.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "will_retry=true" in cluster.agent.log.read_text(), "the failure", PROGRAMS_S)
        lost = ask(lab, 30000, AFTER)
        assert len(lost) <= FEW
        assert ask(lab, 20000, 50) == []  # flows of the old map live on
        assert cluster.packets()["drop_snat_exhausted"] == len(lost)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_flows_that_begin_at_a_hook_that_is_ahead_of_the_others(attach: str) -> None:
    """Clients are at the device whose hooks are updated first, and backends at those that follow seconds later."""
    with Lab(tag="ra-") as lab:
        lab.serve_all()
        config = lab.folder / "agent.yaml"
        config.write_text("flow-table-size: 65536\n")
        cluster = Cluster(lab, attach, ("--config", str(config)))
        cluster.web().write(cluster.folder)
        cluster.dns().write(cluster.folder)
        cluster.agent.start(module="tests.agent.unhurried")
        talkers = [cluster.talkers(8, vip) for vip in VIPS]
        with cluster.load(pause_s=0.01, timeout_s=30) as load:
            for size in (131072, 65536):
                config.write_text(f"flow-table-size: {size}\n")
                assert cluster.agent.process is not None
                cluster.agent.process.send_signal(signal.SIGHUP)
                wait_for(lambda size=size: flow_table_size(cluster) == size, "the new size", PROGRAMS_S)
        assert load.tally.failures == []
        assert load.tally.syns_again == 0
        assert all(each.ask() == each.first for each in talkers)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_start_of_another_version_with_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs on the hooks are of another source than those that move the flows."""
    newer = replace(builder.ensure_artifact(), source_hash="of another version")
    with Lab(tag="rv-") as lab:
        lab.serve_all()
        cluster = Cluster(lab, "tc", ("--flow-table-size", "65536"))
        cluster.web().write(cluster.folder)
        cluster.dns().write(cluster.folder)
        cluster.agent.start()
        cluster.agent.stop()
        with KernelMaps.open(lab.bpffs, create=False) as maps:
            sizes = maps.sizes
        monkeypatch.setattr(attach, "attach", unhurried.backwards)
        monkeypatch.setattr(DeviceAttacher, "attach", unhurried.slowly)
        talkers = [cluster.talkers(8, vip) for vip in VIPS]
        with cluster.load(pause_s=0.01, timeout_s=30) as load:
            wanted = replace(sizes, flow4=1 << 17, flow6=1 << 16)
            outcome = lab.node.call(resize.resize_at_start, str(lab.bpffs), wanted, lambda: newer, ProgramSettings())
        assert (outcome.sizes, outcome.problems) == (wanted, {})
        assert load.tally.failures == []
        assert load.tally.syns_again == 0
        assert all(each.ask() == each.first for each in talkers)


def flow_table_size(cluster: Cluster) -> int:
    return next(each["size"] for each in cluster.agent.json("status")["maps"] if each["name"] == "lb4_flow")


def ask(lab: Lab, first: int, count: int) -> list[int]:
    """Send one request each from so many source ports; return those without an answer."""
    unanswered = []
    with lab.client.entered():
        for port in range(first, first + count):
            try:
                traffic.dns_ask("10.96.0.53", 53, source_port=port, timeout_s=10)
            except TimeoutError:
                unanswered.append(port)
    return unanswered
