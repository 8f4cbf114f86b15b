"""Devices: their hooks, links that outlive the agent, programs of others, detaching everything."""

from __future__ import annotations

import os
import struct

import pytest
from pyroute2 import IPRoute

from lbagent.bpf.hooks import (
    TC_AFTER_XDP,
    TC_EGRESS,
    TC_INGRESS,
    XDP,
    XDP_GENERIC,
    AttachPoint,
    AttachPointKind,
    parse_link_pin,
)
from lbagent.bpf.load import attach, clsact, links
from lbagent.bpf.load.attach import Attachment, wanted_attachments
from lbagent.bpf.load.devices import Device, devices
from lbagent.bpf.load.loader import load_generation
from lbagent.bpf.load.verifier_report import temporary_maps
from lbagent.errors import Conflict, NotFound, Unsupported
from lbagent.kernel import bpf_link, bpf_prog, bpffs
from lbagent.kernel.opcodes import returning
from tests.bpf.support import config_record

pytestmark = [pytest.mark.root, pytest.mark.bpf]

NIC = Device("eth0", 2, "", loopback=False, mtu=1500, xdp_prog_id=0, xdp_mode="")
VETH = Device("veth0", 3, "veth", loopback=False, mtu=1500, xdp_prog_id=0, xdp_mode="")
POD = Device("lxc12", 4, "veth", loopback=False, mtu=1500, xdp_prog_id=0, xdp_mode="")
LO = Device("lo", 1, "", loopback=True, mtu=65536, xdp_prog_id=0, xdp_mode="")
PRESENT = {item.name: item for item in (NIC, VETH, POD, LO)}
PASS_PROGRAM = returning(2)  # XDP_PASS


@pytest.fixture
def programs(artifact, fds):
    made = load_generation(artifact, fds, config_record())
    yield made.programs
    made.close()


@pytest.fixture
def other_programs(second_artifact, fds):
    made = load_generation(second_artifact, fds, config_record())
    yield made.programs
    made.close()


@pytest.fixture(params=["tcx", "clsact"])
def tc_way(request, monkeypatch):
    """Both ways of tc; a kernel without TCX has only one."""
    if request.param == "clsact":
        monkeypatch.setattr(clsact, "has_tcx", lambda: False)
    elif not clsact.has_tcx():
        pytest.skip(str(Unsupported("TCX", "6.6")))
    return request.param


@pytest.mark.parametrize(
    ("mode", "device", "hook"),
    [
        ("auto", "eth0", XDP), ("auto", "veth0", TC_INGRESS), ("auto", "lo", TC_INGRESS),
        ("xdp", "veth0", XDP), ("xdp-generic", "eth0", XDP_GENERIC), ("tc", "eth0", TC_INGRESS),
    ],
)  # fmt: skip
def test_mode_decides_the_way_in_and_egress_is_always_there(mode, device, hook):
    assert wanted_attachments(mode, [device], [], PRESENT) == [
        Attachment.on_device(device, hook),
        Attachment.on_device(device, TC_EGRESS),
    ]


def test_pod_devices_are_found_by_pattern_and_get_tc_in_every_mode():
    found = wanted_attachments("xdp", ["eth0"], ["lxc*", "nothing*"], PRESENT)
    assert [(item.target.name, item.hook) for item in found if item.optional] == [
        ("lxc12", TC_EGRESS), ("lxc12", TC_INGRESS),
    ]  # fmt: skip


def test_a_device_that_is_named_twice_is_attached_once():
    assert len(wanted_attachments("tc", ["eth0", "eth0"], ["eth*"], PRESENT)) == 2


def test_a_device_that_does_not_exist_ends_with_3_and_names_those_that_do():
    with pytest.raises(
        NotFound, match="device eth9 does not exist.*nothing was attached.*eth0, lxc12, veth0"
    ) as caught:
        wanted_attachments("auto", ["eth9"], [], PRESENT)
    assert caught.value.exit_code == 3


def test_a_dot_in_a_device_name_gets_into_the_pin_and_back(tmp_path):
    path = links.pin_path(tmp_path, AttachPoint(AttachPointKind.DEVICE, "eth0.100"), XDP)
    assert "." not in path.name
    assert parse_link_pin(path.name) == (AttachPoint(AttachPointKind.DEVICE, "eth0.100"), XDP)


def test_xdp_stays_without_us_and_is_updated_in_place(root, programs, other_programs, netns):
    hooks = [Attachment.on_device("v0", XDP)]
    attach.attach(root, hooks, programs, fall_back=False)
    first = devices()["v0"]
    assert first.xdp_mode == "xdp"
    assert first.xdp_prog_id == bpf_prog.prog_info(programs["xdp"]).id
    link = links.linked_program(root, AttachPoint(AttachPointKind.DEVICE, "v0"), XDP)
    attach.attach(root, hooks, other_programs, fall_back=False)
    assert devices()["v0"].xdp_prog_id == bpf_prog.prog_info(other_programs["xdp"]).id != link
    tcx = ["v0-tc_after_xdp"] if clsact.has_tcx() else ["v0-filters"]
    assert sorted(path.name for path in (root / "link").iterdir()) == [*tcx, "v0-xdp"]


@pytest.mark.parametrize("mode", [XDP, XDP_GENERIC])
def test_xdp_comes_and_goes_with_its_companion(root, programs, other_programs, netns, tc_way, mode):
    wanted = [Attachment.on_device("v0", mode), Attachment.on_device("v0", TC_EGRESS)]
    both = [wanted[0], Attachment.on_device("v0", TC_AFTER_XDP), wanted[1]]
    for generation in (programs, other_programs):
        assert attach.attach(root, wanted, generation, fall_back=False) == both
        assert attach.attach(root, both, generation, fall_back=False) == both
    found = {(item.target.name, item.hook.program) for item in attach.attached(root)}
    assert found == {("v0", "xdp"), ("v0", "tc_after_xdp"), ("v0", "tc_egress")}
    plain = [Attachment.on_device("v0", TC_INGRESS)]
    assert attach.attach(root, plain, programs, fall_back=False) == plain == attach.attached(root)
    assert attach.attach(root, wanted[:1], programs, fall_back=False) == both[:2]
    assert {item.hook for item in attach.detach_all(root)} >= {TC_AFTER_XDP}
    assert attach.attached(root) == []


def test_generic_only_when_asked_and_changing_over_works(root, programs, netns):
    for mode, shown in ((XDP_GENERIC, "xdpgeneric"), (XDP, "xdp"), (XDP_GENERIC, "xdpgeneric")):
        attach.attach(root, [Attachment.on_device("v0", mode)], programs, fall_back=False)
        assert devices()["v0"].xdp_mode == shown


def link_id(root, name, hook):
    fd = bpffs.open_pin(links.pin_path(root, AttachPoint(AttachPointKind.DEVICE, name), hook))
    try:
        return bpf_link.link_info(fd).id
    finally:
        os.close(fd)


@pytest.mark.parametrize("mode", [XDP, XDP_GENERIC])
@pytest.mark.parametrize("name", ["v0", "renamed0"])
def test_a_restart_finds_xdp_in_the_mode_it_is_in(root, programs, other_programs, netns, mode, name):
    """The link does not contain the mode. With the wrong one it would be detached, and attached in a mode that the driver may lack."""
    attach.attach(root, [Attachment.on_device("v0", mode)], programs, fall_back=False)
    before = link_id(root, "v0", mode)
    if name != "v0":
        netns.ip("link set v0 down", f"link set v0 name {name}", f"link set {name} up")
    found = attach.attached(root)
    assert Attachment.on_device("v0", mode) in found
    attach.attach(root, found, other_programs, fall_back=False)  # the start of another version
    assert link_id(root, "v0", mode) == before
    assert devices()[name].xdp_mode == mode.xdp_mode
    assert {item.hook for item in attach.detach_all(root)} == {mode, TC_AFTER_XDP}


def agents_programs(filter_map):
    """Return tc programs that pass all packets, and have a map `lb_filter` as an agent's do."""
    load_map = struct.pack("<BBhi", 0x18, 0x11, 0, filter_map) + bytes(8)  # r1 = map
    loaded = bpf_prog.prog_load(bpf_prog.ProgType.SCHED_CLS, load_map + returning(0), "tc_ingress")
    return {"tc_ingress": loaded.fd, "tc_egress": loaded.fd}


def test_a_second_agent_at_a_device_is_refused_and_takes_nothing_away(root, netns, fds, tc_way):
    other = root.parent / "other" / "v1"
    hooks = [Attachment.on_device("v0", TC_INGRESS), Attachment.on_device("v0", TC_EGRESS)]
    with temporary_maps() as more:
        for folder, maps in ((root, fds), (other, more)):
            folder.mkdir(parents=True, exist_ok=True)
            bpffs.pin(maps["lb_filter"], folder / "lb_filter")
        attach.attach(root, hooks, agents_programs(fds["lb_filter"]), fall_back=False)
        attach.attach(root, hooks, agents_programs(fds["lb_filter"]), fall_back=False)  # its own next version
        second = agents_programs(more["lb_filter"])
        with pytest.raises(Conflict, match=r"device v0 already runs the program tc_ingress .* of another lbagent"):
            attach.attach(other, hooks, second, fall_back=False)
        assert attach.detach_all(other) == []
        assert sorted(attach.attached(root), key=str) == sorted(hooks, key=str)
        (root / "lb_filter").unlink()  # a filter outlives its agent: without pins it is no agent's
        if tc_way == "tcx":
            attach.detach_all(root)
        assert attach.attach(other, hooks, second, fall_back=False) == hooks
        assert len(attach.detach_all(other)) == 2


def test_a_renamed_device_keeps_its_programs(root, programs, other_programs, netns, tc_way):
    hooks = [Attachment.on_device("v0", TC_INGRESS), Attachment.on_device("v0", TC_EGRESS)]
    attach.attach(root, hooks, programs, fall_back=False)
    index = netns.ifindex("v0")
    netns.ip("link set v0 down", "link set v0 name lan0", "link set lan0 up")
    assert attach.attached_indexes(root) == {"v0": index}
    assert sorted(attach.attached(root), key=str) == sorted(hooks, key=str)
    assert attach.lost(root, hooks, programs) == []
    assert attach.attach(root, hooks, other_programs, fall_back=False) == hooks
    assert attach.attached_indexes(root) == {"v0": index}
    renamed = [Attachment.on_device("lan0", item.hook) for item in hooks]  # --device was changed
    assert attach.attach(root, renamed, programs, fall_back=False) == renamed
    assert {item.target.name for item in attach.attached(root)} >= {"lan0"}
    assert attach.detach_all(root)
    assert attach.attached(root) == []
    assert list((root / "link").iterdir()) == []


def test_tc_both_directions_replaced_and_taken_away(root, programs, other_programs, netns, tc_way):
    hooks = [Attachment.on_device("v0", TC_INGRESS), Attachment.on_device("v0", TC_EGRESS)]
    for generation in (programs, other_programs, other_programs):
        attach.attach(root, hooks, generation, fall_back=False)
        assert sorted(attach.attached(root), key=str) == sorted(hooks, key=str)
    assert sorted(attach.detach_all(root), key=str) == sorted(hooks, key=str)
    assert attach.attached(root) == []


def test_what_is_no_longer_wanted_goes(root, programs, netns, tc_way):
    attach.attach(
        root, [Attachment.on_device("v0", TC_INGRESS), Attachment.on_device("v1", XDP)], programs, fall_back=False
    )
    attach.attach(root, [Attachment.on_device("v0", TC_EGRESS)], programs, fall_back=False)
    assert attach.attached(root) == [Attachment.on_device("v0", TC_EGRESS)]
    assert devices()["v1"].xdp_prog_id == 0


def test_another_xdp_program_is_named_and_left_alone(root, programs, netns):
    loaded = bpf_prog.prog_load(bpf_prog.ProgType.XDP, PASS_PROGRAM, "firewall")
    link = bpf_link.link_create(loaded.fd, netns.ifindex("v0"), bpf_link.AttachType.XDP, 4)
    try:
        with pytest.raises(Conflict, match="device v0 already runs the XDP program firewall .*left alone.*--attach tc"):
            attach.attach(root, [Attachment.on_device("v0", XDP)], programs, fall_back=True)
        assert devices()["v0"].xdp_prog_id == bpf_prog.prog_info(loaded.fd).id
    finally:
        os.close(link)
        os.close(loaded.fd)


def test_too_large_an_mtu_is_told_and_auto_falls_back_to_tc(root, programs, netns):
    netns.ip("link set v0 mtu 9000", "link set v1 mtu 9000")
    with pytest.raises(Unsupported, match="native XDP on device v0.*MTU 9000"):
        attach.attach(root, [Attachment.on_device("v0", XDP)], programs, fall_back=False)
    done = attach.attach(root, [Attachment.on_device("v0", XDP)], programs, fall_back=True)
    assert done == [Attachment.on_device("v0", TC_INGRESS)]
    assert attach.attached(root) == done


def test_a_device_that_went_and_came_back_is_attached_again(root, programs, netns):
    hooks = [Attachment.on_device("v0", XDP)]
    attach.attach(root, hooks, programs, fall_back=False)
    netns.ip("link del v0")
    assert attach.attached(root) == []
    with pytest.raises(NotFound, match="device v0 is gone"):
        attach.attach(root, hooks, programs, fall_back=False)
    netns.ip("link add v0 type veth peer name v1", "link set v0 up")
    attach.attach(root, hooks, programs, fall_back=False)
    assert devices()["v0"].xdp_mode == "xdp"


def test_cleanup_takes_links_of_devices_that_are_gone(root, programs, netns):
    attach.attach(root, [Attachment.on_device("v0", XDP)], programs, fall_back=False)
    netns.ip("link del v0")
    attach.detach_all(root)
    assert links.pinned_links(root) == []


def test_another_filter_stays(root, programs, netns, monkeypatch):
    monkeypatch.setattr(clsact, "has_tcx", lambda: False)
    with IPRoute() as netlink:
        index = netns.ifindex("v0")
        netlink.tc("add", "clsact", index=index)
        netlink.tc(
            "add-filter", "bpf", index=index, handle=1, fd=programs["tc_ingress"], name="firewall", parent=0xFFFFFFF2,
            prio=7, classid=1, direct_action=True,
        )  # fmt: skip
        attach.attach(root, [Attachment.on_device("v0", TC_INGRESS)], programs, fall_back=False)
        attach.detach_all(root)
        left = [item.get_attr("TCA_OPTIONS").get_attr("TCA_BPF_NAME")
                for item in netlink.get_filters(index=index, parent=0xFFFFFFF2) if item.get_attr("TCA_OPTIONS")]  # fmt: skip
    assert [name for name in left if name] == ["firewall"]


def test_clsact_goes_with_our_last_filter(root, programs, netns, monkeypatch):
    monkeypatch.setattr(clsact, "has_tcx", lambda: False)
    attach.attach(root, [Attachment.on_device("v0", TC_INGRESS)], programs, fall_back=False)
    attach.detach_all(root)
    assert list((root / "link").iterdir()) == []
    with IPRoute() as netlink:
        kinds = {item.get_attr("TCA_KIND") for item in netlink.get_qdiscs(index=netns.ifindex("v0"))}
    assert "clsact" not in kinds


def test_a_pod_device_that_went_meanwhile_is_no_error(root, programs, netns, tc_way):
    hooks = [Attachment.on_device("gone0", TC_INGRESS, optional=True), Attachment.on_device("v0", TC_INGRESS)]
    assert attach.attach(root, hooks, programs, fall_back=False) == [Attachment.on_device("v0", TC_INGRESS)]


def test_marks_of_a_device_that_is_gone_do_not_matter(root, programs, netns, monkeypatch):
    monkeypatch.setattr(clsact, "has_tcx", lambda: False)
    attach.attach(root, [Attachment.on_device("v0", TC_INGRESS)], programs, fall_back=False)
    netns.ip("link del v0", "link add v0 type veth peer name v1")
    assert attach.attached(root) == []
    attach.attach(root, [Attachment.on_device("v0", TC_EGRESS)], programs, fall_back=False)
    assert attach.attached(root) == [Attachment.on_device("v0", TC_EGRESS)]
