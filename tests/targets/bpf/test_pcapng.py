"""Captures as scapy and tcpdump read them."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapNgReader

from lbagent.targets.bpf import pcapng
from tests.lab.debian_packages import TCPDUMP, unpacked

FRAME = bytes(
    Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(src="10.0.0.1", dst="10.0.0.2") / TCP(sport=77)
)
TIME = 1_764_000_000_123_456_789  # ns


def whole() -> bytes:
    return (
        pcapng.section_header("lbagent 1")
        + pcapng.interface("wan", 96)
        + pcapng.packet(0, TIME, FRAME, 1514, pcapng.packet_options("verdict: drop, größer", pcapng.INBOUND))
        + pcapng.interface("lan1", 96)
        + pcapng.packet(1, TIME + 1, FRAME[:-3], 51, pcapng.packet_options("", pcapng.OUTBOUND))
        + pcapng.statistics(0, TIME - 5, TIME + 5, 12, 11, "eleven are lost")
    )


def test_scapy_reads_packets_lengths_times_and_comments(tmp_path: Path) -> None:
    (tmp_path / "x.pcapng").write_bytes(whole())
    with RawPcapNgReader(str(tmp_path / "x.pcapng")) as reader:
        found = list(reader)
    assert [data for data, _ in found] == [FRAME, FRAME[:-3]]
    first, second = (meta for _, meta in found)
    assert (first.wirelen, first.comments, first.ifname, first.direction) == (
        1514, ["verdict: drop, größer".encode()], b"wan", 1,
    )  # fmt: skip
    assert (second.wirelen, second.ifname, second.direction) == (51, b"lan1", 2)
    assert first.tsresol == 10**9
    assert (first.tshigh << 32) + first.tslow == TIME
    assert {each.linktype for each in (first, second)} == {1}


def test_statistics_have_the_losses() -> None:
    data = pcapng.statistics(0, TIME, TIME + 7, 12, 11)
    kind, size, number = struct.unpack_from("=III", data)
    assert (kind, size, number) == (5, len(data), 0)
    assert struct.unpack("=I", data[-4:])[0] == size
    options, at = {}, 20
    while at < len(data) - 4:
        code, length = struct.unpack_from("=HH", data, at)
        options[code] = data[at + 4 : at + 4 + length]
        at += 4 + (length + 3) // 4 * 4
    assert struct.unpack("=Q", options[4]) == (12,)  # isb_ifrecv
    assert struct.unpack("=Q", options[5]) == (11,)  # isb_ifdrop
    assert struct.unpack("=II", options[2]) == (TIME >> 32, TIME & 0xFFFFFFFF)
    assert struct.unpack("=II", options[3]) == ((TIME + 7) >> 32, (TIME + 7) & 0xFFFFFFFF)


def test_tcpdump_reads_it(tmp_path: Path) -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("missing: apt-get, for Debian's tcpdump")
    tools = unpacked("tcpdump", TCPDUMP)
    (tmp_path / "x.pcapng").write_bytes(whole())
    same_user = ["-Z", "root"] if os.geteuid() == 0 else []  # and not Debian's user, which may not be there
    argv = [tools.program("tcpdump"), "-n", *same_user, "-r", tmp_path / "x.pcapng"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=tools.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("10.0.0.2") == 2
