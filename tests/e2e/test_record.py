"""`lbagent record dump`, and the record of an agent that a defect ends, after real traffic."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import stat
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapNgReader

from tests.e2e.cluster import DNS, VIP4, VIP6, WEB, Cluster
from tests.e2e.test_flows import ADDRESS, shown
from tests.lab import traffic
from tests.lab.netns import run, wait_for

MEMBERS = ["events.jsonl", "packets.pcapng", "changes.jsonl", "maps.dump", "status.json", "doctor.json"]
CLIENTS = ("10.77.0.2", "fd77::2")
SECRET = "payload-that-no-record-has"
CLOSED = 81  # no Service has this port
RANGED = """
apiVersion: v1
kind: Service
metadata: {name: ranged, namespace: e2e}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.77
  ports: [{port: 80, protocol: TCP}]
  loadBalancerSourceRanges: [10.77.0.2/32, 192.0.2.0/24]
status: {loadBalancer: {ingress: [{ip: 203.0.113.77}]}}
"""


def members(path: Path) -> dict[str, bytes]:
    """Return the members of a record, in their order."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        out = {}
        for each in archive.getmembers():
            file = archive.extractfile(each)
            assert file is not None
            out[each.name] = file.read()
    return out


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def packets(data: bytes) -> list[tuple[Any, Any]]:
    """Return the frames of a capture as scapy reads them, and the facts of each."""
    with RawPcapNgReader(io.BytesIO(data)) as reader:
        return [(Ether(frame), meta) for frame, meta in reader]


def addresses(packet: Any) -> tuple[str, str]:
    ip = packet[IP] if IP in packet else packet[IPv6]
    return ip.src, ip.dst


def talk(cluster: Cluster) -> list[str]:
    """Open a connection of each family, send a secret, and knock at a closed port; return the clients of the first two."""
    found = []
    for vip in WEB:
        with cluster.client.entered(), traffic.connect(vip, 80) as sock:
            found.append(shown(*sock.getsockname()[:2]))
            sock.sendall(f"GET /{SECRET} HTTP/1.0\r\n\r\n".encode())
            sock.recv(100)
        with cluster.client.entered(), suppress(ConnectionRefusedError), socket.create_connection((vip, CLOSED), 5):
            pass
    return found


def dump(cluster: Cluster, name: str, *words: str) -> dict[str, bytes]:
    path = cluster.lab.folder / name
    cluster.agent.cli("record", "dump", "-o", str(path), *words)
    return members(path)


def test_a_record_has_what_happened(served: Cluster) -> None:
    clients = talk(served)

    def is_whole() -> dict[str, bytes] | None:
        """Return a record that has the maps and the changes of now; nothing if they changed meanwhile."""
        found = dump(served, "whole.tar.gz")
        changes = served.agent.json("history", "-n", "0")[::-1]
        is_of_now = found["maps.dump"].decode().splitlines() == served.agent.dump()
        return found if is_of_now and lines(found["changes.jsonl"]) == changes else None

    found = wait_for(is_whole, "a record of all", 20)
    assert list(found) == MEMBERS
    status = served.agent.api.status()
    assert json.loads(found["status.json"])["pid"] == status["pid"]
    assert {"level", "what", "advice"} == set(json.loads(found["doctor.json"])[0])
    events = lines(found["events.jsonl"])
    begun = [each for each in events if each["source"] in clients]  # a SYN that is repeated is a further one
    assert {(each["source"], each["service"]) for each in begun} == {(each, "e2e/web") for each in clients}
    assert {each["backend"] for each in begun} <= {
        f"{shown(address, 8080)}/TCP" for each in ADDRESS.values() for address in each
    }
    assert any(each["reason"] == "reject_undefined_port" for each in events)
    assert [each["time"] for each in events] == sorted(each["time"] for each in events)

    captured = packets(found["packets.pcapng"])
    assert len(captured) == len(events)
    for (packet, meta), event in zip(captured, events, strict=True):
        source, destination = addresses(packet)
        assert event["source"].startswith((source, f"[{source}]"))
        assert event["destination"].startswith((destination, f"[{destination}]"))
        assert meta.wirelen == event["length"]
        assert meta.ifname == event["device"].encode()
        comment = meta.comments[0].decode()
        for word in ("verdict", "reason"):
            assert f"{word}: {event[word]}" in comment
        if event["backend"]:
            assert f"service: {event['service']}, " in comment
            assert f"backend: {event['backend']}" in comment
    for name, data in found.items():
        assert SECRET.encode() not in data, name


def test_clients_are_replaced_in_every_member(served: Cluster) -> None:
    (served.folder / "ranged.yaml").write_text(RANGED)
    wait_for(lambda: "CIDR=10.77.0.2/32" in "".join(served.agent.dump()), "the source range")
    clients = talk(served)
    backend = ADDRESS["b1"][0]
    with served.lab.namespaces["b1"].entered(), suppress(ConnectionRefusedError):
        socket.create_connection((VIP4, CLOSED), 5).close()
    plain, found = dump(served, "plain.tar.gz"), dump(served, "redacted.tar.gz", "--redact")
    assert list(found) == MEMBERS
    for name, data in found.items():
        for client in CLIENTS:
            assert client.encode() not in data, name
            assert socket.inet_pton(socket.AF_INET6 if ":" in client else socket.AF_INET, client) not in data, name
    whole, redacted = lines(plain["events.jsonl"]), lines(found["events.jsonl"])[: len(lines(plain["events.jsonl"]))]
    names: dict[str, str] = {}
    for before, after in zip(whole, redacted, strict=True):
        for key in before.keys() - {"source", "time"}:
            assert before[key] == after[key], key
        old, new = before["source"].rpartition(":")[0], after["source"].rpartition(":")[0]
        assert names.setdefault(old, new) == new
        assert before["source"].rpartition(":")[2] == after["source"].rpartition(":")[2]
        assert (":" in old) == (":" in new)
    assert names.pop(backend) == backend
    assert set(names) == {CLIENTS[0], f"[{CLIENTS[1]}]"}
    assert len(set(names.values())) == 2
    assert {clients[0].rpartition(":")[0], clients[1].rpartition(":")[0]} == set(names)
    four = names[CLIENTS[0]]
    maps = found["maps.dump"].decode()
    assert f"CIDR={four}/32" in maps
    assert "CIDR=192.0.2.0/24" in maps
    assert VIP4 in maps
    sources = {addresses(packet)[0] for packet, _ in packets(found["packets.pcapng"])}
    assert sources == {each.strip("[]") for each in names.values()} | {backend}
    targets = {addresses(packet)[1] for packet, _ in packets(found["packets.pcapng"])}
    assert targets <= {*WEB, *DNS}
    for packet, _ in packets(found["packets.pcapng"]):
        if TCP in packet:
            assert packet[TCP].chksum == 0


def test_after_the_agent_was_killed(served: Cluster) -> None:
    talk(served)
    before = dump(served, "alive.tar.gz")

    def stays() -> bool:
        nonlocal before
        earlier, before = before, dump(served, "alive.tar.gz")
        return all(before[name] == earlier[name] for name in ("changes.jsonl", "maps.dump", "events.jsonl"))

    wait_for(stays, "the end of all changes", 30)
    wait_for((served.lab.folder / "state" / "last-status.json").exists, "the last status")
    pid = served.agent.pid
    served.agent.kill()
    found = dump(served, "dead.tar.gz")
    shutil.rmtree(served.lab.folder / "state")
    alone = dump(served, "alone.tar.gz", "--redact")
    served.agent.start()
    assert (alone["status.json"], alone["changes.jsonl"]) == (b"null\n", b"")
    assert {addresses(packet)[1] for packet, _ in packets(alone["packets.pcapng"])} <= {*WEB, *DNS}
    for name in ("changes.jsonl", "maps.dump"):
        assert found[name].startswith(before[name])
    old, new = ([{**each, "time": ""} for each in lines(data["events.jsonl"])] for data in (before, found))
    assert new[: len(old)] == old
    assert json.loads(found["status.json"])["pid"] == pid
    for (one, _), (other, _) in zip(packets(before["packets.pcapng"]), packets(found["packets.pcapng"]), strict=False):
        assert one == other


def test_without_agent_status_and_events(fresh: Callable[..., Cluster]) -> None:
    """Nothing pinned: 3, and no file. An agent of --events 0: a record without events, and a sentence."""
    cluster = fresh("xdp", "--events", "0")
    path = cluster.lab.folder / "x.tar.gz"
    done = cluster.agent.cli("record", "dump", "-o", str(path), check=False)
    assert (done.returncode, done.stderr.count("\n"), path.exists()) == (3, 1, False), done.stderr
    assert "no agent has run with this --bpffs" in done.stderr
    cluster.web().write(cluster.folder)
    cluster.agent.start()
    done = cluster.agent.cli("record", "dump", "-o", str(path), check=False)
    assert done.returncode == 1
    assert "--events 0" in done.stderr
    found = members(path)
    assert found["events.jsonl"] == b""
    assert packets(found["packets.pcapng"]) == []
    assert f"ADDR={VIP6}" in found["maps.dump"].decode() or VIP6 in found["maps.dump"].decode()


def test_files_that_are_there(served: Cluster, tmp_path: Path) -> None:
    """A record is replaced; another file, a folder, a pipe and a link are not, and a full disk leaves what was there."""
    record = tmp_path / "r.tar.gz"
    served.agent.cli("record", "dump", "-o", str(record))
    os.chmod(record, 0o644)
    served.agent.cli("record", "dump", "-o", str(record))
    assert list(members(record)) == MEMBERS
    foreign, pipe, link = tmp_path / "notes", tmp_path / "pipe", tmp_path / "link"
    foreign.write_text("my notes")
    os.mkfifo(pipe)
    link.symlink_to(foreign)
    for path in (foreign, pipe, link, tmp_path, tmp_path / "none" / "x"):
        done = served.agent.cli("record", "dump", "-o", str(path), check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert str(path) in done.stderr
    assert foreign.read_text() == "my notes"
    served.agent.cli("record", "dump", "-o", str(foreign), "--overwrite")
    assert list(members(foreign)) == MEMBERS
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "notes", "pipe", "r.tar.gz"]


def test_a_full_disk_leaves_what_was_there(served: Cluster, tmp_path: Path) -> None:
    run("mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(tmp_path))
    try:
        path = tmp_path / "x.tar.gz"
        served.agent.cli("record", "dump", "-o", str(path))
        before = path.read_bytes()
        with suppress(OSError), (tmp_path / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        done = served.agent.cli("record", "dump", "-o", str(path), check=False)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"{path}: No space left on device" in done.stderr
        assert path.read_bytes() == before
        assert sorted(each.name for each in tmp_path.iterdir()) == ["filler", "x.tar.gz"]
    finally:
        run("umount", str(tmp_path))


def test_a_defect_leaves_a_record(fresh: Callable[..., Cluster], tmp_path: Path) -> None:
    """The agent names it in the log, and keeps three; its exit code is that of a defect."""
    cluster = fresh("tc")
    cluster.web().write(cluster.folder)
    folder = cluster.lab.folder / "state" / "records"
    names: list[str] = []
    for number in range(4):
        trigger = tmp_path / str(number)
        cluster.agent.start(module="tests.e2e.defective_agent", env={"LAB_DEFECT": str(trigger)})
        pid = cluster.agent.pid
        talk(cluster)
        trigger.touch()
        assert cluster.agent.process is not None
        assert cluster.agent.process.wait(120) == 1
        names.append(max(each.name for each in folder.iterdir()))
        assert names[-1] in cluster.agent.tail()
    assert sorted(each.name for each in folder.iterdir()) == names[1:]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    found = members(folder / names[-1])
    assert list(found) == [*MEMBERS, "defect.txt"]
    assert b"ZeroDivisionError: the defect of the test" in found["defect.txt"]
    assert json.loads(found["status.json"])["pid"] == pid
    assert any(each["service"] == "e2e/web" for each in lines(found["events.jsonl"]))
    assert lines(found["changes.jsonl"])
    assert cluster.http(10).total() == 10  # the programs still serve


def test_a_defect_and_a_full_disk(fresh: Callable[..., Cluster], tmp_path: Path) -> None:
    """The log has both, and the agent ends with the code of its defect."""
    cluster = fresh("tc")
    cluster.web().write(cluster.folder)
    state = cluster.lab.folder / "state"
    state.mkdir(mode=0o700)
    run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(state))
    try:
        cluster.agent.start(module="tests.e2e.defective_agent", env={"LAB_DEFECT": str(tmp_path / "now")})
        with suppress(OSError), (state / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        (tmp_path / "now").touch()
        assert cluster.agent.process is not None
        assert cluster.agent.process.wait(120) == 1
        assert "no record of it could be written" in cluster.agent.tail()
        assert "the defect of the test" in cluster.agent.tail()
        assert list((state / "records").iterdir()) == []
    finally:
        run("umount", str(state))


def test_a_failure_that_is_no_defect_leaves_none(served: Cluster, tmp_path: Path) -> None:
    """A second agent on the same pins: it ends with 4."""
    second = served.agent.argv()
    second[second.index("--state-dir") + 1] = str(tmp_path / "state")
    second[second.index("--socket") + 1] = str(tmp_path / "socket")
    done = subprocess.run(served.lab.node.command(second), capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 4
    assert not (tmp_path / "state" / "records").exists()
