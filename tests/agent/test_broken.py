"""The real thing broken under a running agent: `status` ends with 1, says what and what to do, and the metric agrees, within 10 s."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lbagent.kernel import bpf_link, bpf_map
from lbagent.kernel.bpfsys import obj_get
from tests.agent.conftest import Box, endpoints, service, web
from tests.lab.agent import program
from tests.lab.netns import run, wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.early]
WITHIN_S = 60.0


class Patient:
    """A box with a healthy agent, and what is asked of its status."""

    def __init__(self, box: Box) -> None:
        self.box, self.agent = box, box.agent
        self.pins = box.bpffs / "v1"

    def status(self) -> dict[str, Any]:
        return self.agent.api.status()

    def conditions(self, name: str = "") -> list[dict[str, Any]]:
        return [each for each in self.status()["conditions"] if name in ("", each["name"])]

    def metric(self, name: str) -> int:
        line = f'lbagent_condition{{name="{name}"}} '
        return next(int(text[len(line) :]) for text in self.agent.api.metrics().splitlines() if text.startswith(line))

    def falls_ill(self, name: str, *words: str, mended: bool = False) -> dict[str, Any]:
        """Wait for a condition, as the command line and the metrics tell it; return it."""
        wait_for(lambda: self.conditions(name), f"the condition {name}", WITHIN_S)
        shown = self.box.agent.cli("status", check=False)
        found = self.conditions(name)[0]
        assert shown.returncode == (found["severity"] == "fault"), shown.stdout
        assert self.box.agent.cli("status", "--strict", check=False).returncode == 1
        assert self.metric(name) > 0
        assert found["mended"] is mended, found
        assert found["text"] in shown.stdout
        for word in words:
            assert word in found["text"] + found["remedy"], found
        return found

    def recovers(self) -> None:
        wait_for(lambda: not self.conditions(), f"health, not {self.conditions()}", WITHIN_S)
        assert self.agent.cli("status").returncode == 0

    def neighbour(self, address: str) -> str:
        """The kernel's entry."""
        return run("ip", "-n", self.box.node.name, "-d", "neigh", "show", address)

    def attached(self) -> list[str]:
        (found,) = [each for each in self.status()["devices"] if each["name"] == "eth0"]
        return found["hooks"]

    def device_metric(self) -> int:
        text = self.agent.api.metrics()
        return int(text.split('lbagent_device_attached{device="eth0"} ')[1].split("\n")[0])

    def link(self, hook: str) -> int:
        """The interface that a pinned link belongs to."""
        fd = obj_get(str(self.pins / "link" / f"eth0-{hook}"))
        try:
            return bpf_link.link_info(fd).target_id
        finally:
            os.close(fd)

    def pinned(self) -> list[str]:
        """Every pin but the mark of what is loaded."""
        return sorted(str(path.relative_to(self.pins)) for path in self.pins.rglob("*") if path.parent.name != "build")

    def map_id(self, name: str) -> int:
        fd = obj_get(str(self.pins / name))
        try:
            return bpf_map.map_info(fd).id
        finally:
            os.close(fd)


def healthy(box: Box) -> None:
    box.write("web.json", *web("10.7.0.2"))


@pytest.fixture(params=["tc", "xdp-generic"])
def attach(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def patient(box: Box, attach: str) -> Patient:
    healthy(box)
    box.agent.attach = attach
    box.agent.start()
    one = Patient(box)
    one.recovers()
    return one


def detach(pin: Path) -> None:
    fd = obj_get(str(pin))
    try:
        bpf_link.link_detach(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("deed", [detach, Path.unlink], ids=["detached", "pin removed"])
def test_a_link_is_attached_again(patient: Patient, deed) -> None:
    entry, hooks = "xdp" if patient.agent.attach != "tc" else "tc_ingress", patient.attached()
    for hook in (entry, "tc_egress"):
        deed(patient.pins / "link" / f"eth0-{hook}")
    patient.falls_ill("link-detached", "device eth0", "it was attached again", mended=True)
    index = patient.box.node.ifindex("eth0")
    assert {patient.link(entry), patient.link("tc_egress")} == {index}
    assert patient.attached() == hooks
    assert patient.device_metric() == 1
    assert "a condition ended" in patient.agent.log.read_text()


def test_a_device_that_is_gone(patient: Patient) -> None:
    patient.box.node.ip("link del eth0")
    patient.falls_ill("device-missing", "eth0", "bring eth0 back")
    assert patient.device_metric() == 0
    patient.box.add_device()
    wait_for(lambda: patient.device_metric() == 1, "eth0", WITHIN_S)
    patient.recovers()


def test_a_device_that_was_renamed(patient: Patient) -> None:
    patient.box.node.ip("link set eth0 down", "link set eth0 name lan0", "link set lan0 up")
    patient.falls_ill("device-missing", "it was renamed to lan0", "--device lan0")
    assert patient.device_metric() == 0


@pytest.mark.parametrize("pin", ["lb4_service", "lb_calls_tc", "prog/tc_egress"])
def test_a_pin_that_was_removed_is_made_again(patient: Patient, pin: str) -> None:
    before = patient.agent.dump()
    (patient.pins / pin).unlink()
    patient.falls_ill("pin-missing", pin, "it was made again", mended=True)
    assert (patient.pins / pin).exists()
    assert patient.agent.dump() == before
    assert patient.agent.cli("verify", "--bpffs", str(patient.box.bpffs)).stdout == ""


def test_bpffs_unmounted(patient: Patient) -> None:
    """It is mounted again with all that was pinned there: the maps are the same ones, also for the next agent, and so are its links."""
    box, agent, mount = patient.box, patient.agent, patient.box.bpffs.parent
    dump, pins, flows = agent.dump(), patient.pinned(), patient.map_id("lb4_flow")
    hooks = patient.attached()
    run("umount", "-l", str(mount))
    try:
        patient.falls_ill("bpffs-unmounted", str(patient.pins), "maps, programs and links there again", mended=True)
        assert (agent.dump(), patient.pinned(), patient.map_id("lb4_flow")) == (dump, pins, flows)
        assert patient.attached() == hooks
        second = box.run("agent", "--manifests", str(box.manifests), "--bpffs", str(box.bpffs), "--socket", "/tmp/none")
        assert (second.returncode, f"pid {agent.pid}" in second.stderr) == (4, True)
        agent.kill()
        assert patient.link("tc_egress") == box.node.ifindex("eth0")
        log = len(agent.log.read_text())
        agent.start()
        assert "plan applied" not in agent.log.read_text()[log:]
        assert patient.map_id("lb4_flow") == flows
        patient.recovers()
    finally:
        agent.remove()
        subprocess.run(["umount", "-l", str(box.bpffs)])
        run("mount", "-t", "bpf", "bpf", str(mount))  # the box takes it away


def test_a_next_hop_without_neighbour(patient: Patient) -> None:
    patient.box.write("web.json", *web("10.7.0.2", "10.7.0.77"))
    patient.falls_ill("next-hop-unresolved", "10.7.0.77 on eth0")
    patient.box.peer.ip("addr add 10.7.0.77/24 dev eth0")
    patient.box.write("web.json", *web("10.7.0.2"))
    patient.recovers()


def test_a_next_hop_whose_service_is_deleted(patient: Patient) -> None:
    """With the Service end the condition, the mark of the neighbour and the requests for it; no host ever answered."""
    patient.box.write("dead.json", service("dead", "10.96.0.11"), endpoints("dead", "10.7.0.78"))
    patient.falls_ill("next-hop-unresolved", "10.7.0.78 on eth0")
    assert "managed" in patient.neighbour("10.7.0.78")
    (patient.box.manifests / "dead.json").unlink()
    patient.recovers()
    wait_for(lambda: "managed" not in patient.neighbour("10.7.0.78"), "the mark to go", WITHIN_S)


def test_a_backend_without_a_usable_route(patient: Patient) -> None:
    patient.box.node.ip("route add unreachable 198.51.100.0/24")
    patient.box.write("web.json", *web("10.7.0.2", "198.51.100.9"))
    patient.falls_ill("path-unusable", "backend 198.51.100.9", "its route refuses packets", "ip route get")
    patient.box.node.ip("route del unreachable 198.51.100.0/24")
    patient.recovers()


def test_a_map_that_is_nearly_full(box: Box) -> None:
    healthy(box)
    box.agent.arguments = ["--max-service-slots", "64"]
    box.agent.start()
    one = Patient(box)
    one.recovers()
    box.write(
        "more.json",
        *[item for n in range(19) for item in (service(f"s{n}", f"10.96.1.{n}"), endpoints(f"s{n}", "10.7.0.2"))],
    )
    one.falls_ill("map-nearly-full", "map lb4_service", "--max-service-slots")


def test_the_manifest_folder_is_gone(patient: Patient) -> None:
    aside = patient.box.folder / "aside"
    patient.box.manifests.rename(aside)
    patient.falls_ill("source-untrusted", str(patient.box.manifests))
    aside.rename(patient.box.manifests)
    patient.recovers()


def test_a_file_that_is_refused(patient: Patient) -> None:
    (patient.box.manifests / "bad.json").write_text("{")
    found = patient.falls_ill("objects-refused", "bad.json")
    doctor = patient.agent.cli("doctor", "--bpffs", str(patient.box.bpffs), "-o", "json")
    shown = {"level": "warning", "what": found["text"], "advice": found["remedy"]}
    assert json.loads(doctor.stdout)[-1] == shown, "a fault of the agent; doctor's exit code is 0 all the same"
    (patient.box.manifests / "bad.json").unlink()
    patient.recovers()


def test_forwarding_off(patient: Patient) -> None:
    patient.box.node.sysctl("ipv6/conf/all/forwarding", 0)  # no backend has an IPv6 address
    patient.box.node.sysctl("ipv4/ip_forward", 0)
    patient.falls_ill("forwarding-off", "IPv4 forwarding is off", "sysctl -w net.ipv4.ip_forward=1")
    assert len(patient.conditions("forwarding-off")) == 1
    patient.box.node.sysctl("ipv4/ip_forward", 1)
    patient.recovers()


def test_a_private_mount_namespace(box: Box) -> None:
    """As `ip netns exec` makes one: the bpf file system that the agent mounts is seen by no other process."""
    healthy(box)
    inner = box.folder / "inner"
    inner.mkdir()
    agent = box.agent
    argv = [word if word != str(box.bpffs) else str(inner) for word in agent.argv()]
    with agent.log.open("a") as log:
        agent.process = subprocess.Popen(
            box.node.command(["unshare", "--mount", "--propagation", "private", *argv]),
            stdout=log,
            stderr=log,
            text=True,
        )
    agent.wait_ready()
    one = Patient(box)
    one.falls_ill("private-mount", str(inner), "nsenter --net")
    assert "this mount namespace is private" in agent.log.read_text()
    doctor = box.node.command(
        ["unshare", "--mount", "--propagation", "private", *program(), "doctor", "--bpffs", str(inner)]
    )
    said = subprocess.run(doctor, capture_output=True, text=True).stdout
    assert "warning" in next(line for line in said.splitlines() if "this mount namespace is private" in line)
    with contextlib.suppress(OSError):
        agent.process.terminate()
    agent.process.wait(20)


@pytest.mark.parametrize(("first", "second"), [("xdp-generic", "tc"), ("tc", "xdp-generic"), ("tc", "tc")])
def test_a_second_agent_on_the_device_is_refused(box: Box, first: str, second: str) -> None:
    healthy(box)
    box.agent.attach = first
    box.agent.start()
    other = box.make_agent()
    other.attach = second
    argv = other.argv()[len(program()) :]
    for flag, value in (("--bpffs", box.folder / "bpf" / "other"), ("--socket", box.folder / "other.sock")):
        argv[argv.index(flag) + 1] = str(value)
    done = box.run(*argv)
    assert done.returncode == 4, done.stderr
    assert "device eth0 already runs" in done.stderr
    assert "another lbagent" in done.stderr
    assert not (box.folder / "bpf" / "other" / "v1").exists()
    assert box.agent.cli("status").returncode == 0


def test_state_folders_are_private(box: Box) -> None:
    healthy(box)
    box.agent.start()
    copies = box.folder / "state" / "manifests"
    wait_for(lambda: list(copies.rglob("*.json")), "a copy of the manifest", 20)
    modes = {
        path: path.stat().st_mode & 0o777
        for path in (box.folder / "state", *(box.folder / "state").rglob("*"))
        if path.is_dir()
    }
    assert set(modes.values()) == {0o700}, modes
