"""`lbagent capture` beside real traffic: files as scapy and tcpdump read them, full disks, foreign files, agents that die."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.utils import RawPcapNgReader

from tests.e2e.cluster import VIP4, VIP6, WEB, Cluster
from tests.e2e.test_flows import ADDRESS, shown
from tests.e2e.test_monitor import CLOSED, connect
from tests.e2e.test_record import addresses, packets
from tests.lab.debian_packages import TCPDUMP, unpacked
from tests.lab.netns import run, wait_for
from tests.lab.traffic import Talkers

pytestmark = pytest.mark.early


class Capture:
    """A running capture, which has begun: the file has its head."""

    def __init__(self, cluster: Cluster, path: Path, *words: str) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        self.process = cluster.agent.popen(
            "capture", "-w", str(path), *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        wait_for(lambda: self.process.poll() is not None or (path.exists() and path.stat().st_size), "the head", 20)

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Interrupt it; return its exit code and what it wrote on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said

    def wait(self) -> tuple[int, str]:
        """Return the same when it ends by itself."""
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@contextmanager
def capturing(cluster: Cluster, path: Path, *words: str) -> Iterator[Capture]:
    made = Capture(cluster, path, *words)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def drops(data: bytes) -> list[tuple[int, int]]:
    """Return received and dropped of each block of statistics in a pcapng file."""
    found, at = [], 0
    while at < len(data):
        kind, size = (int.from_bytes(data[at + n : at + n + 4], "little") for n in (0, 4))
        if kind == 5:
            options, end = at + 20, at + size - 4
            values = {}
            while options < end:
                code, length = (int.from_bytes(data[options + n : options + n + 2], "little") for n in (0, 2))
                values[code] = int.from_bytes(data[options + 4 : options + 4 + length], "little")
                options += 4 + (length + 3) // 4 * 4
            found.append((values[4], values[5]))
        at += size
    assert at == len(data)
    return found


def interfaces(data: bytes) -> set[bytes]:
    return {meta.ifname for _, meta in packets(data)}


def arrived(data: bytes) -> list[tuple[Any, Any]]:
    """Return the packets that came in."""
    return [(packet, meta) for packet, meta in packets(data) if meta.direction == 1]


def ends(packet: Any) -> tuple[str, str]:
    """Return source and destination as text, with ports."""
    source, destination = addresses(packet)
    l4 = packet[TCP] if TCP in packet else packet[UDP]
    return shown(source, l4.sport), shown(destination, l4.dport)


def joined(data: bytes) -> list[tuple[tuple[Any, Any], tuple[Any, Any] | None]]:
    """Return the packets of a capture as they arrived, each with what follows it in the file as it left."""
    found: list[tuple[tuple[Any, Any], tuple[Any, Any] | None]] = []
    for packet, meta in packets(data):
        if meta.direction == 1:
            found.append(((packet, meta), None))
        else:
            assert meta.direction == 2
            assert found[-1][1] is None
            found[-1] = (found[-1][0], (packet, meta))
    return found


@pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])
def test_a_connection_before_and_after(served: Cluster, tmp_path: Path, family: int) -> None:
    """Both directions of a connection, as its sockets saw them: addresses, devices, lengths, comments."""
    path, vip = tmp_path / "x.pcapng", WEB[family]
    with capturing(served, path, f"-{(4, 6)[family]}", "--frontend", vip) as capture:
        client, name = connect(served, vip)
        connect(served, WEB[1 - family])
        connect(served, vip, CLOSED)
        code, said = capture.end()
    assert code == 0, said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    backend, frontend = shown(ADDRESS[name][family], 8080), shown(vip, 80)
    found = joined(path.read_bytes())
    port = client.rpartition(":")[2]
    client = next(ends(each)[0] for (each, _), _ in found if ends(each)[0].endswith(f":{port}"))
    ours = [pair for pair in found if client in ends(pair[0][0]) or (pair[1] and client in ends(pair[1][0]))]
    ((syn, syn_meta), left), *more = [pair for pair in ours if pair[0][0][TCP].flags == "S"]  # of one tick in any order
    assert (ends(syn), syn_meta.ifname) == ((client, frontend), b"wan")
    assert {ends(again[0]) for again, _ in more} <= {(client, frontend)}  # a SYN that a busy machine repeats
    assert syn_meta.wirelen == (74, 94)[family]  # a SYN of Linux
    assert left is not None
    source, destination = ends(left[0])
    assert destination == backend
    assert (source == client) == (name == "b3")
    assert left[1].wirelen == syn_meta.wirelen
    assert left[0][TCP].seq == syn[TCP].seq
    assert left[1].ifname == {"b1": b"lan1", "b2": b"lan2", "b3": b"stack"}[name]
    for meta in (syn_meta, left[1]):
        comment = meta.comments[0].decode()
        assert f"service: e2e/web, frontend: {frontend}/TCP, backend: {backend}/TCP" in comment
        assert ("verdict: local, reason: fwd_local" if name == "b3" else "verdict: forward, reason: fwd_new") in comment
    replies = [(before, after) for before, after in ours if ends(before[0])[0] == backend]
    assert replies
    for (reply, meta), after in replies:
        assert ends(reply)[1] == source
        assert after is not None
        assert ends(after[0]) == (frontend, client)
        assert after[1].ifname == b"wan"
        assert f"reason: fwd_reply, service: e2e/web, frontend: {frontend}/TCP" in meta.comments[0].decode()
    assert {"S", "A", "PA"} <= {str(before[0][TCP].flags) for before, _ in ours}  # the quick path, too
    assert any(before[0][TCP].flags == "SA" for before, _ in replies)
    ((refused, meta), none), *_ = [pair for pair in found if pair[0][0][TCP].dport == CLOSED]
    assert b"verdict: answer, reason: reject_undefined_port" in meta.comments[0]
    assert none is None
    assert refused[TCP].flags == "S"
    others = WEB[1 - family]
    assert all(others not in addresses(packet) for packet, _ in packets(path.read_bytes()))
    assert sum(missing for _, missing in drops(path.read_bytes())) == 0


def test_selected_by_the_client_and_the_backend(served: Cluster, tmp_path: Path) -> None:
    """Replies belong to the client and to the frontend, although neither is in the packet that arrives."""
    for words in (("--client", "10.77.0.2"), ("--service", "e2e/web", "-4"), ("--proto", "tcp", "-4")):
        path = tmp_path / "x.pcapng"
        with capturing(served, path, *words) as capture:
            connect(served, VIP4)
            assert capture.end()[0] == 0
        reasons = {meta.comments[0].decode().split(", ")[1] for _, meta in arrived(path.read_bytes())}
        assert "reason: fwd_reply" in reasons, words
    with capturing(served, path, "--client", "10.77.0.3") as capture:
        connect(served, VIP4)
        assert capture.end()[0] == 0
    assert packets(path.read_bytes()) == []


@pytest.mark.parametrize("vip", WEB)
def test_selected_by_the_state_of_the_flow(served: Cluster, tmp_path: Path, vip: str) -> None:
    """Both directions of open connections; when no packet has come for a while, none is selected by --idle-over."""
    path = tmp_path / "x.pcapng"
    family = "-6" if ":" in vip else "-4"
    talkers = Talkers(served.client, vip, 80, 4)
    try:
        with capturing(served, path, "--state", "established", family) as capture:
            talkers.ask()
            connect(served, vip, CLOSED)
            assert capture.end()[0] == 0
        words = [meta.comments[0].decode().split(", ") for _, meta in arrived(path.read_bytes())]
        reasons = {reason.removeprefix("reason: ") for _, reason, *_ in words}
        assert "fwd_reply" in reasons
        assert reasons <= {"fwd_established", "fwd_local", "fwd_reply"}
        with capturing(served, path, "--idle-over", "1m", family) as capture:
            talkers.ask()
            assert capture.end()[0] == 0
        assert packets(path.read_bytes()) == []
    finally:
        talkers.close()


def test_one_port_of_a_client(served: Cluster, tmp_path: Path) -> None:
    """Packets that differ in the port alone, with the same verdict, are told apart."""
    path = tmp_path / "x.pcapng"
    with capturing(served, path, "--client", "10.77.0.2:43999") as capture:
        for port in (43998, 43999, 43997):
            with served.client.entered(), suppress(ConnectionRefusedError):
                socket.create_connection((VIP4, CLOSED), 5, ("10.77.0.2", port)).close()
        assert capture.end()[0] == 0
    assert {packet[TCP].sport for packet, _ in arrived(path.read_bytes())} == {43999}


def test_tcpdump_reads_the_stream_while_it_runs(served: Cluster) -> None:
    capture = served.agent.popen(
        "capture", "-w", "-", "--frontend", VIP4, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    found = unpacked("tcpdump", TCPDUMP)
    dump = subprocess.Popen(
        [found.program("tcpdump"), "-lnr", "-", "-Z", "root"],  # unpacked packages make no user
        stdin=capture.stdout,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=found.environment(),
    )
    assert capture.stdout is not None
    assert dump.stdout is not None
    capture.stdout.close()
    try:
        output = dump.stdout.fileno()
        os.set_blocking(output, False)
        text = ""

        def is_seen() -> bool:
            nonlocal text
            client, _ = connect(served, VIP4)
            time.sleep(0.2)
            with suppress(BlockingIOError):
                text += os.read(output, 1 << 16).decode()
            return f"> {VIP4}.80: Flags [S]" in text and client.rpartition(":")[0] in text

        wait_for(is_seen, "a packet in tcpdump", 20)
        dump.kill()  # the reader leaves
        connect(served, VIP4)
        assert capture.wait(20) == 0
    finally:
        for each in (capture, dump):
            each.kill()
            each.wait()


def test_count_duration_and_filters(served: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    with capturing(served, path, "--count", "2", "--service", "e2e/web", "-6") as capture:
        for _ in range(4):
            connect(served, VIP4)
            with suppress(OSError):
                connect(served, VIP6)
        code, said = capture.wait()
    assert (code, "2 packets captured" in said) == (0, True), said
    assert len(arrived(path.read_bytes())) == 2
    assert all(VIP6.encode() in meta.comments[0] for _, meta in arrived(path.read_bytes()))
    began = time.monotonic()
    with capturing(served, path, "--duration", "1500ms", "--client", "192.0.2.0/24") as capture:
        connect(served, VIP4)
        code, said = capture.wait()
    assert code == 0
    assert 1 < time.monotonic() - began < 60
    assert packets(path.read_bytes()) == []
    assert drops(path.read_bytes()) == [(0, 0)]
    done = served.agent.cli("capture", "--count", "1", "--duration", "10ms")
    assert done.returncode == 0


def test_lines_for_people(served: Cluster) -> None:
    process = served.agent.popen(
        "capture", "--frontend", VIP4, "--count", "24", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while process.poll() is None:
        connect(served, VIP4, CLOSED)
        connect(served, VIP4)
        time.sleep(0.1)
    text, _ = process.communicate(timeout=10)
    assert len(text.splitlines()) == 24  # two connections and more, wherever in one it began
    assert f"> {VIP4}:{CLOSED} [S]" in text
    assert "answer reject_undefined_port TCP" in text
    assert re.search(rf"10\.77\.0\.2:\d+ > {VIP4}:80 \[S\] e2e/web to .* => .* > .*:8080 by (lan1|lan2|stack)", text)


def test_files_that_are_there(served: Cluster, tmp_path: Path) -> None:
    own, foreign, pipe, link = (tmp_path / name for name in ("own.pcapng", "notes", "pipe", "link"))
    words = ("--duration", "10ms")
    served.agent.cli("capture", "-w", str(own), *words)
    os.chmod(own, 0o644)
    served.agent.cli("capture", "-w", str(own), *words)
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    foreign.write_text("my notes")
    os.mkfifo(pipe)
    link.symlink_to(foreign)
    for path in (foreign, pipe, link, tmp_path, tmp_path / "none" / "x"):
        done = served.agent.cli("capture", "-w", str(path), *words, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert str(path) in done.stderr
    assert foreign.read_text() == "my notes"
    served.agent.cli("capture", "-w", str(foreign), "--overwrite", *words)
    assert packets(foreign.read_bytes()) == []


def test_a_full_disk(served: Cluster, tmp_path: Path) -> None:
    """One sentence; the packets that were written are readable, and the others are counted in the file."""
    run("mount", "-t", "tmpfs", "-o", "size=12k", "tmpfs", str(tmp_path))
    try:
        path = tmp_path / "x.pcapng"
        with capturing(served, path) as capture:
            wait_for(lambda: connect(served, VIP4) and capture.process.poll() is not None, "the end of the capture", 60)
            code, said = capture.wait()
        assert code == 1
        assert said.count("No space left on device") == 1
        data = path.read_bytes()
        found = packets(data)
        assert 20 < len(found) < 100
        assert all(TCP in packet for packet, _ in found)
        received, missing = map(sum, zip(*drops(data), strict=True))
        assert missing >= 1
        assert received == len(found) + missing
    finally:
        run("umount", str(tmp_path))


def test_killed_capture_and_killed_agent(served: Cluster, tmp_path: Path) -> None:
    """A capture continues without the agent; one that is killed leaves a readable file."""
    path = tmp_path / "x.pcapng"
    with capturing(served, path, "--frontend", VIP4) as capture:
        connect(served, VIP4)
        served.agent.kill()
        time.sleep(3)
        connect(served, VIP4, CLOSED)
        wait_for(lambda: any(packet[TCP].dport == CLOSED for packet, _ in packets(path.read_bytes())), "a refusal", 20)
        served.agent.start()

        def is_followed() -> bool:
            client, _ = connect(served, VIP4)
            time.sleep(0.3)
            found = joined(path.read_bytes())
            port = int(client.rpartition(":")[2])
            return any(left and left[0][TCP].dport == port for _, left in found)

        wait_for(is_followed, "a reply, before and after", 30)
        capture.process.kill()
        _, said = capture.process.communicate(timeout=10)
    assert said.count("the agent does not answer") == 1
    assert said.count("the agent answers again: packets are recorded") == 1
    with RawPcapNgReader(str(path)) as reader:
        assert len(list(reader)) >= 3


def test_sigterm_ends_it_well(served: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    with capturing(served, path) as capture:
        connect(served, VIP4)
        assert capture.end(signal.SIGTERM)[0] == 0
    assert drops(path.read_bytes())


def test_losses_are_in_the_file(fresh: Callable[..., Cluster], tmp_path: Path) -> None:
    """A capture that stands still while packets come: those that new ones overwrote are counted."""
    cluster = fresh("xdp", "--events", "64")
    cluster.web().write(cluster.folder)
    cluster.agent.start()
    path = tmp_path / "x.pcapng"
    with capturing(cluster, path) as capture:
        connect(cluster, VIP4)
        time.sleep(0.5)
        capture.process.send_signal(signal.SIGSTOP)
        cluster.http(60)
        capture.process.send_signal(signal.SIGCONT)
        time.sleep(1.5)
        code, said = capture.end()
    assert code == 0
    data = path.read_bytes()
    last = drops(data)[-len(interfaces(data)) :]
    missing = sum(each for _, each in last)
    assert missing >= 100
    assert sum(received for received, _ in last) == len(packets(data)) + missing
    assert "packets were lost" in said
    assert f"{missing} lost" in said


def test_without_agent_and_without_events(fresh: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = fresh("xdp", "--events", "0")
    cluster.web().write(cluster.folder)
    done = cluster.agent.cli("capture", "-w", str(tmp_path / "x"), "--duration", "1", check=False)
    assert (done.returncode, done.stderr.count("\n"), (tmp_path / "x").exists()) == (3, 1, False)
    cluster.agent.start()
    done = cluster.agent.cli("capture", "-w", str(tmp_path / "x"), "--duration", "1", check=False)
    assert (done.returncode, done.stderr.count("\n"), (tmp_path / "x").exists()) == (3, 1, False), done.stderr
    assert "--events 0" in done.stderr
    cluster.agent.stop()
    cluster.agent.arguments = []
    cluster.agent.start()
    cluster.agent.stop()
    done = cluster.agent.cli("capture", "-w", str(tmp_path / "x"), "--duration", "1", check=False)
    assert (done.returncode, done.stderr.count("\n"), (tmp_path / "x").exists()) == (5, 1, False), done.stderr


def test_no_payload(served: Cluster, tmp_path: Path) -> None:
    """Not even that of a first packet."""
    secret = b"payload-that-no-capture-has"
    path = tmp_path / "x.pcapng"
    with capturing(served, path) as capture:
        for vip in ("10.96.0.53", "fd00:96::53"):
            with (
                served.client.entered(),
                socket.socket(socket.AF_INET6 if ":" in vip else socket.AF_INET, socket.SOCK_DGRAM) as sock,
            ):
                sock.sendto(secret, (vip, 53))
        time.sleep(0.5)
        capture.end()
    found = arrived(path.read_bytes())
    assert {addresses(packet)[1] for packet, _ in found} >= {"10.96.0.53", "fd00:96::53"}
    assert secret not in path.read_bytes()
    asked = {meta.wirelen for packet, meta in found if IP in packet and packet[UDP].dport == 53}
    assert asked == {14 + 20 + 8 + len(secret)}
