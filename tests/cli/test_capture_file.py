"""Captures that scapy and tcpdump write give their frames; anything else is one sentence."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import PcapWriter, wrpcap, wrpcapng

from lbagent.cli.capture_file import frames
from lbagent.errors import ConfigError

LINK = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
PACKETS = [LINK / IP(dst=f"10.0.0.{n}") / UDP(sport=n, dport=53) / (b"x" * n) for n in range(1, 5)]
RAW = [bytes(packet) for packet in PACKETS]


def test_pcap_of_both_byte_orders_and_units(tmp_path: Path) -> None:
    for order in ("<", ">"):
        for nano in (False, True):
            path = tmp_path / f"{order}{nano}"
            with PcapWriter(str(path), endianness=order, nano=nano) as writer:
                writer.write(PACKETS)
            assert list(frames(str(path))) == RAW


def test_pcapng(tmp_path: Path) -> None:
    wrpcapng(str(tmp_path / "x"), PACKETS)
    assert list(frames(str(tmp_path / "x"))) == RAW


def test_packets_without_ethernet_header_get_one(tmp_path: Path) -> None:
    wrpcap(str(tmp_path / "x"), [packet[IP] for packet in PACKETS], linktype=101)
    assert list(frames(str(tmp_path / "x"))) == [bytes(12) + b"\x08\x00" + bytes(packet[IP]) for packet in PACKETS]


def test_a_frame_that_was_cut_is_filled_with_zeros(tmp_path: Path) -> None:
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 1)
    (tmp_path / "x").write_bytes(head + struct.pack("<IIII", 0, 0, 20, 30) + RAW[0][:20])
    assert list(frames(str(tmp_path / "x"))) == [RAW[0][:20] + bytes(10)]


def test_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrpcap(str(tmp_path / "x"), PACKETS)
    for data, found in (((tmp_path / "x").read_bytes(), RAW), (b"", [])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert list(frames("-")) == found


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no capture at all", "neither pcap nor pcapng"),
        (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 1) + b"\0" * 9, "in the middle of a record"),
        (struct.pack("<IHHiIIIIIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 1, 0, 0, 1 << 30, 9), "is it a capture?"),
        (b"\x0a\x0d\x0d\x0a" + b"\x1c\0\0\0" + b"abcd", "not a pcapng section"),
    ],
)
def test_what_is_no_capture(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        list(frames(str(tmp_path / "x")))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        list(frames(str(tmp_path / "none")))
