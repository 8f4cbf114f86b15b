"""The daemon as a process: start, stop, kill, restart, reload, a second one, and everything that keeps it from starting."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import time

import pytest

from tests.agent.conftest import Box, endpoints, service, web
from tests.lab.agent import program
from tests.lab.netns import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.early]


def one_sentence(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """The last line on stderr is the error, alone, without a traceback, and names these."""
    text = done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in text


def pins(box: Box) -> list[str]:
    return sorted(str(path.relative_to(box.bpffs)) for path in box.bpffs.rglob("*"))


def applied(box: Box) -> int:
    return box.agent.log.read_text().count("plan applied")


def test_start_serve_stop_and_start_again_with_nothing_to_write(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5", "10.7.0.6"))
    box.agent.start()
    status = box.agent.json("status")
    assert status["ready"]
    assert status["services"] == 1
    assert [device["name"] for device in status["devices"]] == ["eth0"]
    assert status["devices"][0]["hooks"]
    assert stat.S_IMODE(box.socket.stat().st_mode) == 0o600
    before = box.agent.dump()
    assert any("ADDR=10.96.0.10:80/TCP SLOT=2" in line for line in before)
    assert {"v1/prog/tc_ingress", "v1/prog/tc_egress", "v1/prog/sweep4"} <= set(pins(box))
    assert "v1/prog/xdp" not in pins(box), "no device has XDP"
    programs = pins(box)
    assert box.agent.stop() == 0
    assert not box.socket.exists()
    assert pins(box) == programs
    assert box.agent.dump() == before
    assert applied(box) == 1
    box.agent.start()
    assert box.agent.dump() == before
    assert applied(box) == 1
    assert box.run("verify", "--bpffs", str(box.bpffs)).returncode == 0


def test_killed_and_started_again_it_keeps_ids_and_takes_up_what_changed_meanwhile(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5", "10.7.0.6"))
    box.write("old.json", service("old", "10.96.0.20"), endpoints("old", "10.7.0.9"))
    box.agent.start()
    before = {line for line in box.agent.dump() if "10.96.0.10" in line}
    box.agent.kill()
    (box.manifests / "old.json").unlink()
    box.write("new.json", service("new", "10.96.0.30"), endpoints("new", "10.7.0.5"))
    box.agent.start()
    dump = box.agent.dump()
    assert before <= set(dump)
    assert any("10.96.0.30:80" in line for line in dump)
    assert not any("10.96.0.20" in line for line in dump)


def test_an_agent_that_announces_nothing_has_no_addresses_and_no_peers(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    for words in (("vip", "list"), ("bgp", "peers")):
        done = box.agent.cli(*words, check=False)
        assert (done.returncode, done.stdout) == (3, "")
        one_sentence(done, "announces no addresses", "--announce FILE")


def test_a_second_agent_on_the_same_pins_is_refused(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    done = box.failed_start("--socket", str(box.folder / "other.sock"))
    assert done.returncode == 4
    assert box.agent.process is not None
    one_sentence(done, str(box.agent.json("status")["pid"]), str(box.bpffs))
    assert box.agent.json("status")["ready"]


def test_no_device_that_exists(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.devices = ["nosuch0", "nosuch1"]
    argv = box.agent.argv()[len(program()) :]
    done = box.run(*argv)
    assert done.returncode == 3
    one_sentence(done, "nosuch0", "nosuch1", "eth0")
    assert not (box.bpffs / "v1" / "link").exists()


def test_the_agent_starts_without_a_device_that_is_not_there_and_attaches_when_it_comes(box: Box) -> None:
    """It ended with exit code 3, and took no traffic from the other device either."""
    box.write("web.json", *web("10.7.0.5"))
    box.agent.devices = ["eth0", "late0", "bond+"]
    box.agent.start()

    def devices() -> dict[str, tuple[bool, str]]:
        return {item["name"]: (bool(item["hooks"]), item["problem"]) for item in box.agent.json("status")["devices"]}

    assert devices() == {
        "eth0": (True, ""),
        "late0": (False, "device late0 is not there; programs are attached when it comes"),
        "bond+": (False, "no device matches bond+; programs are attached when one comes"),
    }
    attached = [line for line in box.agent.cli("metrics").stdout.splitlines() if "lbagent_device_attached{" in line]
    assert sorted(attached) == ['lbagent_device_attached{device="eth0"} 1', 'lbagent_device_attached{device="late0"} 0']
    box.node.ip("link add late0 type veth peer name far8", "link add bond7 type veth peer name far9")
    box.node.ip("link set late0 up", "link set bond7 up")
    wait_for(lambda: devices() == dict.fromkeys(("eth0", "late0", "bond7"), (True, "")), "programs on the late devices")
    box.node.ip("link del bond7")
    wait_for(lambda: devices().get("bond+", (True, ""))[1], "the pattern to match nothing")


def test_a_reload_takes_a_device_that_is_not_there_yet(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    config = box.folder / "c.yaml"
    config.write_text("device: [eth0]\n")
    box.agent = box.make_agent("--config", str(config))
    box.agent.devices = []
    box.agent.start()
    config.write_text("device: [eth0, late0, 'bond+']\n")
    assert box.agent.process is not None
    box.agent.process.send_signal(signal.SIGHUP)

    def devices() -> dict[str, bool]:
        return {item["name"]: bool(item["hooks"]) for item in box.agent.json("status")["devices"]}

    wait_for(lambda: devices() == {"eth0": True, "late0": False, "bond+": False}, "the new list", 60)
    box.node.ip("link add late0 type veth peer name far8", "link set late0 up")
    wait_for(lambda: devices() == {"eth0": True, "late0": True, "bond+": False}, "programs on late0", 60)


def test_the_devices_of_the_default_routes(box: Box) -> None:
    """A backup route's too; a device stays when its route goes for a moment."""
    box.write("web.json", *web("10.7.0.5"))
    box.agent.devices = ["auto"]
    box.agent.start()

    def attached() -> list[str]:
        return sorted(item["name"] for item in box.agent.json("status")["devices"] if item["hooks"])

    assert attached() == ["eth0"]
    box.node.ip("link add up1 type veth peer name far1", "addr add 10.8.0.1/24 dev up1", "link set up1 up")
    box.node.ip("link set far1 up", "route add default via 10.8.0.2 dev up1 metric 500")
    wait_for(lambda: attached() == ["eth0", "up1"], "programs on the backup route's device")
    box.node.ip("route del default via 10.7.0.2")
    wait_for(lambda: box.agent.json("status")["ready"], "the agent")
    assert attached() == ["eth0", "up1"]


def test_no_source_is_a_usage_error(box: Box) -> None:
    done = box.run("agent", "--bpffs", str(box.bpffs), "--socket", str(box.socket))
    assert done.returncode == 2
    one_sentence(done, "--manifests")


def test_a_wrong_configuration_names_file_and_key(box: Box) -> None:
    (box.folder / "c.yaml").write_text("reject-rate: 5\nnode-ips: [10.0.0.1]\n")
    done = box.failed_start("--config", str(box.folder / "c.yaml"))
    assert done.returncode == 2
    one_sentence(done, "c.yaml:2", "node-ips", "node-ip")


def test_no_root(box: Box) -> None:
    words = box.make_agent().argv()[len(program()) :]
    read_all = "-all,+dac_read_search"  # the checkout may be in a folder of root's own
    user = ["--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={read_all}", f"--ambient-caps={read_all}"]
    argv = ["setpriv", *user, *program(), *words]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    )
    assert done.returncode == 1
    one_sentence(done, "root")


def test_pins_that_cannot_be_resized_are_not_taken_over_silently(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    box.agent.stop()
    done = box.failed_start("--maglev-table-size", "251")
    assert done.returncode == 1
    one_sentence(done, "lb_maglev_inner", "cleanup")
    assert box.agent.dump()


def test_cleanup_is_refused_while_an_agent_runs_and_leaves_nothing_after(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    refused = box.run("cleanup", "--bpffs", str(box.bpffs))
    assert refused.returncode == 4
    one_sentence(refused, "pid ")
    box.agent.stop()
    assert box.run("cleanup", "--bpffs", str(box.bpffs)).returncode == 0
    assert not (box.bpffs / "v1").exists()
    links = box.node.call(
        lambda: subprocess.run(["ip", "-d", "link", "show", "eth0"], capture_output=True, text=True).stdout
    )
    assert "xdp" not in links
    assert box.run("cleanup", "--bpffs", str(box.bpffs)).returncode == 0


@pytest.mark.parametrize("attach", ["tc", "xdp-generic"])
def test_cleanup_elsewhere_says_which_neighbours_stay(box: Box, attach: str) -> None:
    """In another network namespace the neighbours are not found: they are named. In the agent's nothing is left."""
    box.write("web.json", *web("10.7.0.2", "10.7.0.5"))
    box.agent.attach = attach
    words = ["cleanup", "--bpffs", str(box.bpffs), "--state-dir", str(box.folder / "state")]

    def managed() -> bool:
        return (
            "10.7.0.5"
            in subprocess.run(["ip", "-n", box.node.name, "neigh"], capture_output=True, text=True, check=True).stdout
        )

    for space in (box.peer, box.node):
        box.agent.start()
        wait_for(managed, "the neighbour")
        box.agent.stop()
        done = subprocess.run(space.command([*program(), *words]), capture_output=True, text=True, check=True)
        left = [line for line in done.stdout.splitlines() if line.startswith("left 2 neighbours")]
        if space is box.node:
            assert left == []
            assert "released 2 neighbours" in done.stdout
        else:
            assert "in the network namespace of eth0, which is not this one" in left[0]
            assert "asking for 10.7.0.2, 10.7.0.5: `ip neigh del ADDRESS dev DEVICE` there" in left[0]
            box.node.ip("link set eth0 down", "link set eth0 up", "route add default via 10.7.0.2")


def test_ready_is_told_to_the_supervisor(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    path = box.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(30)
        box.agent.start(env={"NOTIFY_SOCKET": str(path)})
        assert sock.recv(100) == b"READY=1"
        assert box.agent.process is not None
        box.agent.process.send_signal(signal.SIGHUP)
        assert sock.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert sock.recv(100) == b"READY=1"
        box.agent.stop()
        assert sock.recv(100) == b"STOPPING=1"


def test_sighup_takes_a_new_configuration_over_and_keeps_the_old_one_when_it_is_bad(box: Box) -> None:
    config = box.folder / "c.yaml"
    config.write_text("log-format: text\n")
    box.write("web.json", *web("10.7.0.5"))
    box.agent = box.make_agent("--config", str(config))
    box.agent.start()
    artifact = box.agent.json("status")["artifact"]

    def hangup() -> None:
        assert box.agent.process is not None
        box.agent.process.send_signal(signal.SIGHUP)

    config.write_text("log-format: json\nreject-rate: 7\n")
    hangup()
    wait_for(lambda: '"message": "configuration applied"' in box.agent.log.read_text(), "reload")
    assert box.agent.json("status")["artifact"] != artifact  # the rate is part of the programs
    config.write_text("log-format: xml\n")
    hangup()
    wait_for(lambda: any("xml" in text for text in box.agent.json("status")["problems"]), "problem")
    assert box.agent.json("status")["ready"]
    config.write_text("log-format: json\nreject-rate: 7\nmax-backends: 1024\n")
    hangup()
    wait_for(lambda: '"keys": ["max-backends"]' in box.agent.log.read_text(), "warning")
    wait_for(lambda: not box.agent.json("status")["problems"], "the problem to go")


def test_the_operators_word_on_a_pod_holds_for_its_next_address_too(box: Box) -> None:
    service, piece = web("10.7.0.5", "10.7.0.6")
    piece["endpoints"][0]["targetRef"] = {"kind": "Pod", "name": "web-0"}
    box.write("web.json", service, piece)
    box.agent.start()
    unknown = box.agent.cli("backend", "set-state", "pod/box/web-7", "maintenance", check=False)
    assert unknown.returncode == 3
    one_sentence(unknown, "box/web-7", "nothing was changed")
    box.agent.cli("backend", "set-state", "maintenance", "pod/box/web-0")
    assert any("10.7.0.5:8080/TCP STATE=maintenance" in line for line in box.agent.dump())
    box.agent.kill()
    piece["endpoints"][0]["addresses"] = ["10.7.0.9"]
    box.write("web.json", service, piece)
    box.agent.start()
    assert any("10.7.0.9:8080/TCP STATE=maintenance" in line for line in box.agent.dump())
    box.agent.cli("backend", "set-state", "active", "pod/box/web-0")
    assert any("SLOT=0" in line and "COUNT=2 " in line for line in box.agent.dump())


def test_the_operators_word_survives_a_restart_and_is_checked(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5", "10.7.0.6"))
    box.agent.start()
    box.agent.cli("backend", "set-state", "10.7.0.5:8080", "maintenance")
    dump = box.agent.dump()
    assert any("10.7.0.5:8080/TCP STATE=maintenance" in line for line in dump)
    assert any("SLOT=0" in line and "COUNT=1 " in line for line in dump)
    refused = box.agent.cli("backend", "set-state", "10.7.0.5:8080", "quarantined", check=False)
    assert refused.returncode == 4
    one_sentence(refused, "maintenance", "quarantined")
    missing = box.agent.cli("backend", "set-state", "10.7.0.77:8080", "maintenance", check=False)
    assert missing.returncode == 3
    box.agent.kill()
    box.agent.start()
    assert box.agent.dump() == dump
    box.agent.cli("backend", "set-state", "10.7.0.5:8080", "active")
    assert any("SLOT=0" in line and "COUNT=2 " in line for line in box.agent.dump())


def test_the_manifests_have_the_word_again_after_clear_state(box: Box) -> None:
    """Without it, `set-state active` beat every later BackendState without limit."""
    box.write("web.json", *web("10.7.0.5", "10.7.0.6"))
    box.agent.start()

    def row(number: int) -> dict[str, object]:
        return {item["address"]: item for item in box.agent.json("backend", "list")}[f"10.7.0.{number}:8080/TCP"]

    assert "set_by" not in row(5)
    box.agent.cli("backend", "set-state", "active", "10.7.0.5")
    spec = {"address": "10.7.0.5:8080/TCP", "state": "maintenance"}
    meta = {"name": "repair", "creationTimestamp": "2026-11-21T20:48:46Z"}
    box.write("x.json", {"apiVersion": "lbagent.io/v1alpha1", "kind": "BackendState", "metadata": meta, "spec": spec})
    wait_for(lambda: box.agent.json("status")["sources"][1]["objects"] == 3, "the BackendState")
    assert (row(5)["state"], row(5)["set_by"]) == ("active", "operator")
    assert abs(float(str(row(5)["set_at"])) - time.time()) < 60
    box.agent.cli("backend", "clear-state", "10.7.0.5:8080")
    assert (row(5)["state"], row(5)["set_at"]) == ("maintenance", 1795294126.0)
    assert "x.json:" in str(row(5)["set_by"])

    last = box.agent.cli("backend", "drain", "--node", "", "10.7.0.6", check=False)
    assert last.returncode == 4
    one_sentence(last, "box/web:http", "nothing was changed", "--yes")
    assert row(6)["state"] == "active"
    box.agent.cli("backend", "drain", "10.7.0.6", "--yes")
    assert row(6)["state"] == "maintenance"
    box.agent.kill()
    box.agent.start()
    assert row(6)["set_by"] == "operator"
    box.agent.cli("backend", "clear-state", "--service", "box/web")
    assert row(6)["state"] == "active"


def test_a_folder_that_goes_or_is_emptied_takes_nothing_away(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    before = box.agent.dump()
    shutil.move(box.manifests, box.folder / "away")
    wait_for(lambda: any(source["messages"] for source in box.agent.json("status")["sources"]), "a message")
    assert box.agent.dump() == before
    box.agent.kill()
    box.agent.start(wait=False)
    wait_for(
        lambda: box.socket.exists() and "nothing is removed yet" in box.agent.log.read_text(), "the agent to hold on"
    )
    waiting = box.agent.cli("status", "--wait", "0.2s", check=False)
    assert waiting.returncode == 6
    assert box.agent.dump() == before
    shutil.move(box.folder / "away", box.manifests)
    box.agent.wait_ready()
    assert box.agent.dump() == before


@pytest.mark.parametrize("copies", [True, False], ids=["copies", "maps alone"])
def test_an_operator_sees_and_rules_what_is_served_without_the_folder(box: Box, *, copies: bool) -> None:
    """At night, the folder's disk is gone and the agent was restarted: what does it serve, and can a backend be drained?"""
    box.write("web.json", *web("10.7.0.5", "10.7.0.6"))
    box.agent.start()
    before = box.agent.dump()
    place = box.folder / "state" / "manifests"
    wait_for(lambda: any(place.rglob("web.json")), "a copy of the manifest")
    box.agent.kill()
    shutil.move(box.manifests, box.folder / "away")
    if not copies:
        shutil.rmtree(place)
    box.agent.start(wait=False)
    wait_for(lambda: box.socket.exists() and "nothing is removed yet" in box.agent.log.read_text(), "the first pass")
    listed = box.agent.cli("svc", "list")
    assert "10.96.0.10:80/TCP" in listed.stdout
    assert ("box/web" if copies else "?/restored") in listed.stdout
    assert "`lbagent status` shows" in listed.stderr
    status = box.agent.api.status()
    assert not status["ready"]
    assert (status["frontends"], status["backends"]) == (1, 2)
    assert any("folder has given no complete list yet" in text for text in status["problems"])
    assert f"lbagent_restored_frontends {int(not copies)}" in box.agent.cli("metrics").stdout
    assert 'lbagent_source_trusted{source="folder"} 0' in box.agent.cli("metrics").stdout
    assert box.agent.dump() == before
    box.agent.cli("backend", "set-state", "10.7.0.5:8080", "maintenance")
    assert any("SLOT=0" in line and "COUNT=1 " in line for line in box.agent.dump())
    box.agent.cli("backend", "set-state", "10.7.0.5:8080", "active")
    assert box.agent.dump() == before
    shutil.move(box.folder / "away", box.manifests)
    box.agent.wait_ready()
    assert box.agent.dump() == before
    assert box.agent.cli("svc", "list").stderr == ""
    assert "box/web" in box.agent.cli("svc", "list").stdout


def test_newer_maps_win_over_older_copies(box: Box) -> None:
    """The state folder could not be written when two backends went; then the agent is restarted without the folder of manifests."""
    box.write("web.json", *web("10.7.0.5", "10.7.0.6", "10.7.0.7"))
    box.agent.start()
    (place,) = wait_for(lambda: list((box.folder / "state" / "manifests").rglob("web.json")), "a copy of the manifest")
    old = place.read_text()
    box.write("web.json", *web("10.7.0.6"))
    box.until_dump(lambda lines: not any("SLOT=2 " in line for line in lines), "one slot")
    before = box.agent.dump()
    box.agent.kill()
    place.write_text(old)
    shutil.move(box.manifests, box.folder / "away")
    box.agent.start(wait=False)
    wait_for(lambda: box.socket.exists() and "nothing is removed yet" in box.agent.log.read_text(), "the first pass")
    assert box.agent.dump() == before
    assert "box/web" in box.agent.cli("svc", "list").stdout
    shutil.move(box.folder / "away", box.manifests)
    box.agent.wait_ready()
    assert box.agent.dump() == before


def test_a_file_that_does_not_parse_keeps_its_last_objects_and_is_named(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    before = box.agent.dump()
    (box.manifests / "web.json").write_text('{"kind": "List",\n "items": [')
    wait_for(
        lambda: any("web.json:" in m for s in box.agent.json("status")["sources"] for m in s["messages"]), "a message"
    )
    assert box.agent.dump() == before
    assert "web.json:" in box.agent.log.read_text()


def test_a_change_of_a_manifest_reaches_the_maps(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    box.write("web.json", *web("10.7.0.5", "10.7.0.6", "10.7.0.7"))
    box.until_dump(lambda lines: any("SLOT=3 " in line for line in lines), "three slots")
    box.write("web.json", *web("10.7.0.7"))
    lines = box.until_dump(lambda lines: not any("SLOT=2 " in line for line in lines), "one slot")
    assert sum(line.startswith("BE:") for line in lines) == 1


def test_a_device_that_goes_and_returns_is_attached_again(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start()
    box.node.ip("link del eth0")
    wait_for(lambda: box.agent.json("status")["devices"][0]["problem"], "the problem")
    assert box.agent.json("status")["ready"]
    box.add_device()
    device = wait_for(
        lambda: next((d for d in box.agent.json("status")["devices"] if d["hooks"] and not d["problem"]), None),
        "the device",
    )
    assert device["ifindex"] == box.node.ifindex("eth0")


def test_next_hops_follow_neighbours(box: Box) -> None:
    box.write("web.json", *web("10.7.0.2", "192.0.2.1"))
    box.agent.start()
    wait_for(
        lambda: next(m["used"] for m in box.agent.json("status")["maps"] if m["name"] == "lb_nexthop") >= 1,
        "a next hop",
    )
    assert "10.7.0.2" in subprocess.run(["ip", "-n", box.node.name, "neigh"], capture_output=True, text=True).stdout


def test_metrics_and_sweeps(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent = box.make_agent("--sweep-interval", "1")
    box.agent.start()
    wait_for(lambda: box.agent.json("status")["sweeps"] >= 2, "two sweeps")
    assert not box.agent.json("status")["problems"]
    text = box.agent.cli("metrics").stdout
    assert "lbagent_ready 1" in text
    assert 'lbagent_map_entries{map="lb4_flow"} 0' in text


def test_little_memory_with_few_services(box: Box) -> None:
    for number in range(10):
        name = f"s{number}"
        box.write(f"{name}.json", service(name, f"10.96.1.{number}"), endpoints(name, "10.7.0.5", "10.7.0.6"))
    box.agent.start()
    pid = box.agent.json("status")["pid"]
    with open(f"/proc/{pid}/status") as stream:
        resident = next(int(line.split()[1]) for line in stream if line.startswith("VmRSS"))
    assert resident <= 60 * 1024


def test_it_ends_soon_when_told_during_the_start(box: Box) -> None:
    box.write("web.json", *web("10.7.0.5"))
    box.agent.start(wait=False)
    assert box.agent.process is not None
    wait_for(lambda: "agent starts" in box.agent.log.read_text(), "the start")
    began = time.monotonic()
    assert box.agent.stop() == 0
    assert time.monotonic() - began < 10
    box.agent.start()
    assert box.agent.json("status")["ready"]
