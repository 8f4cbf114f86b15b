"""doctor before the start: each finding against a namespace made for it."""

from __future__ import annotations

import os

import pytest

from lbagent.bpf.hooks import XDP
from lbagent.bpf.load import attach
from lbagent.bpf.load.attach import Attachment
from lbagent.bpf.load.loader import load_generation
from lbagent.bpf.load.verifier_report import SMALL_SIZES
from lbagent.checks.table import offline_findings
from lbagent.config import Config
from lbagent.kernel import features
from lbagent.maps.frontend_codec import encode, service_key
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.check import Level
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import SVC, SVCType
from lbagent.targets.bpf.checks import kernel_checks, socket_checks
from tests.bpf.support import config_record, in_child

pytestmark = [pytest.mark.root, pytest.mark.bpf]


def settings(snat_ports=(1024, 29999), **words):
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in words.items()}
    return Config(snat_ports="{}-{}".format(*snat_ports), **lists)


def texts(question, *levels):
    found = offline_findings(question)
    return [f"{item.text}; {item.remedy}" for item in found if item.level in levels]


def matching(question, word, *levels):
    return [text for text in texts(question, *(levels or tuple(Level))) if word in text]


def test_a_healthy_machine_has_no_error(netns):
    assert texts(settings(device=["v0"]), Level.ERROR) == []


def test_veth_is_tc_by_itself_and_warned_about_with_xdp(netns):
    assert matching(settings(device=["v0"]), "device v0 (veth, MTU 1500): tc", Level.OK)
    assert matching(settings(device=["v0"], attach="xdp"), "unfinished checksums", Level.WARNING)


def test_veth_driver_offers_native_xdp(netns):
    found = features.has_native_xdp(netns.ifindex("v0"))
    if found is None:
        pytest.skip("the kernel does not tell (Linux 6.3)")
    assert found
    assert features.has_native_xdp(1) is False  # loopback
    assert features.has_native_xdp(9999) is None


def test_a_device_that_is_not_there_is_an_error(netns):
    assert matching(settings(device=["eth9"]), "eth9 does not exist", Level.ERROR)


def test_a_device_that_is_not_there_beside_one_that_is_holds_nothing_up(netns):
    options = settings(device=["eth9", "v0"])
    assert matching(options, "eth9 is not there", Level.WARNING)
    assert not texts(options, Level.ERROR)
    options = settings(device=["bond+"])
    assert matching(options, "no device matches bond+", Level.WARNING)
    assert not texts(options, Level.ERROR)


def test_devices_by_pattern_and_by_default_route(netns):
    assert matching(settings(device=["v+"]), "device v0 (veth, MTU 1500): tc", Level.OK)
    assert matching(settings(device=["auto"]), "no device has a default route", Level.WARNING)
    netns.ip("addr add 10.9.0.1/24 dev v0", "link set v0 up", "route add default via 10.9.0.2")
    assert matching(settings(device=["auto"]), "device v0 (veth, MTU 1500): tc", Level.OK)


def test_jumbo_frames_are_told(netns):
    netns.ip("link set v0 mtu 9000")
    assert matching(settings(device=["v0"], attach="xdp"), "MTU 9000 is more than one page", Level.WARNING)


def test_our_own_xdp_is_fine_and_anothers_an_error(netns, root, artifact, fds):
    made = load_generation(artifact, fds, config_record())
    attach.attach(root, [Attachment.on_device("v0", XDP)], made.programs, fall_back=False)
    here, elsewhere = (settings(device=["v0"], attach="xdp", bpffs=str(path)) for path in (root.parent, root / "other"))
    assert not matching(here, "not lbagent's")
    assert matching(elsewhere, "an XDP program that is not lbagent's", Level.ERROR)
    made.close()


@pytest.mark.parametrize(
    ("ports", "words"),
    [
        ((1024, 29999), []),
        ((20000, 31000), ["NodePort"]),
        ((33000, 40000), ["ephemeral"]),
        ((30000, 40000), ["NodePort", "ephemeral"]),
    ],
)
def test_port_ranges_that_overlap(netns, ports, words):
    netns.sysctl("ipv4/ip_local_port_range", "32768 60999")
    found = matching(settings(snat_ports=ports), "overlaps", Level.WARNING)
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


def test_ports_that_the_node_itself_does_not_reach_are_named(netns, root):
    options = settings(bpffs=str(root.parent))
    assert not matching(options, "NodePorts and HostPorts")  # no agent has run here
    frontends = [
        ("10.0.0.1:30080", SVCType.NODE_PORT), ("10.0.0.2:30080", SVCType.NODE_PORT), ("0.0.0.0:30080", SVCType.NODE_PORT),
        ("[fd00::1]:30053/UDP", SVCType.NODE_PORT), ("10.0.0.1:8443", SVCType.HOST_PORT), ("10.96.0.1:80", SVCType.CLUSTER_IP),
    ]  # fmt: skip
    with KernelMaps.open(root.parent, SMALL_SIZES) as maps:
        for number, (text, kind) in enumerate(frontends, 1):
            flags = ServiceFlags.parse("" if kind is SVCType.CLUSTER_IP else kind.value)
            frontend = L3n4Addr.parse(text)
            row = encode(SVC(frontend, number, type=kind, flags=flags)).slots[0]
            maps.put_many("lb6_service" if frontend.is_ipv6 else "lb4_service", [(service_key(frontend, 0), row)])
    (found,) = matching(options, "NodePorts and HostPorts", Level.NOTE)
    assert "(8443/TCP, 30053/UDP, 30080/TCP)" in found
    assert "ClusterIP" in found


def test_socket_programs_and_what_they_need(netns, tmp_path, monkeypatch):
    assert not matching(settings(), "socket programs")
    wanted = settings(socket_lb=True)
    assert matching(wanted, "reach Services by socket programs", Level.OK)
    assert matching(settings(socket_lb=True, cgroup=str(tmp_path)), "not on a cgroup2 file system", Level.ERROR)
    assert matching(settings(socket_lb=True, cgroup=str(tmp_path / "no")), "there is no cgroup", Level.ERROR)
    monkeypatch.setattr(features, "has_set_retval", lambda: False)
    assert matching(wanted, "returns EPERM, not ECONNREFUSED", Level.NOTE)
    monkeypatch.setattr(features, "has_socket_programs", lambda: False)
    assert matching(wanted, "runs no programs for the sockets", Level.ERROR)
    monkeypatch.setattr(socket_checks, "first_cgroup", lambda: "")
    assert matching(wanted, "cgroup2, which is not mounted", Level.ERROR)


def test_forwarding_and_reverse_path(netns):
    netns.sysctl("ipv4/ip_forward", 0)
    netns.sysctl("ipv4/conf/all/rp_filter", 1)
    assert matching(settings(), "IPv4 forwarding is off", Level.WARNING)
    assert matching(settings(), "strict reverse path", Level.NOTE)
    netns.sysctl("ipv4/ip_forward", 1)
    assert not matching(settings(), "IPv4 forwarding")


def test_bpffs_that_is_not_mounted_is_a_note(netns, root, tmp_path):
    assert matching(settings(bpffs=str(tmp_path / "none" / "here")), "the agent mounts one", Level.NOTE)
    assert matching(settings(bpffs=str(root.parent)), "is on a bpf file system", Level.OK)


def test_pod_devices_are_listed(netns):
    assert matching(settings(pod_device=["v*"]), "pod devices: v0, v1", Level.OK)


def test_without_programs_and_without_bcc_is_an_error(netns, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_checks, "bcc_version", lambda: "")
    monkeypatch.setattr(kernel_checks, "ARTIFACT_PATH", tmp_path / "no.json")
    assert matching(settings(), "no BCC to build them; apt install python3-bpfcc", Level.ERROR)


def test_an_artifact_that_was_named_must_be_there(netns, tmp_path):
    """The agent builds nothing in its place."""
    assert matching(
        settings(artifact=str(tmp_path / "no.json")), f"--artifact {tmp_path}/no.json does not exist", Level.ERROR
    )


def as_nobody(work):
    """Run `work` as a user without rights, who may not even read this checkout; return the exit code."""
    texts(settings())  # imports what is needed while it can be read
    features.can_load.cache_clear()

    def lesser():
        os.setresuid(65534, 65534, 65534)
        work()

    return in_child(lesser)


def test_without_rights_says_so(netns):
    def look():
        found = matching(settings(), "no permission to load BPF programs", Level.ERROR)
        assert found
        assert "run as root" in found[0]

    assert as_nobody(look) == 0


def test_programs_that_may_not_be_read_are_not_there(netns, tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    path = tmp_path / "built.json"
    path.write_text("{}")
    monkeypatch.setattr(kernel_checks, "ARTIFACT_PATH", path)
    question = settings()
    assert matching(question, f"built programs: {path}", Level.OK)

    def look():
        assert not matching(question, f"built programs: {path}")
        assert matching(question, "programs are not built yet", Level.NOTE)

    assert as_nobody(look) == 0
