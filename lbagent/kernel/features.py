"""Features of this kernel and its devices: each is tested once by trying, and cached."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
from collections.abc import Iterator
from enum import IntFlag
from functools import cache
from pathlib import Path

from lbagent.kernel import bpf_link, bpf_prog
from lbagent.kernel.bpf_link import AttachType
from lbagent.kernel.bpf_prog import ProgType
from lbagent.kernel.opcodes import CALL, MOV64_IMM, SET_RETVAL, insn, returning

_PROBE_PROGRAM = returning(2)  # XDP_PASS
_NO_SUCH_INDEX = 0x7FFFFFFF
# Generic netlink, family `netdev` (Linux 6.3). Source: include/uapi/linux/{genetlink,netdev}.h
_NETLINK_GENERIC, _SOL_NETLINK, _ADD_MEMBERSHIP = 16, 270, 1
_REQUEST, _DUMP = 1, 0x300
_ERROR, _DONE = 2, 3  # nlmsg_type
_CTRL, _CTRL_GETFAMILY = 16, 3
_FAMILY_ID, _FAMILY_NAME, _MCAST_GROUPS, _MCAST_NAME, _MCAST_ID = 1, 2, 7, 1, 2
_DEV_GET, _DEV_IFINDEX, _DEV_XDP_FEATURES = 1, 1, 3
_ATTRIBUTE_MASK = 0x3FFF
_HEADERS = 20  # bytes of nlmsghdr and genlmsghdr
_TIMEOUT_S = 2.0

Attributes = dict[int, bytes]


@cache
def kernel_version() -> tuple[int, int]:
    """Return (major, minor) of the running kernel."""
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _loads(kind: ProgType) -> int:
    """Return 0 if a two-instruction program loads, else the errno."""
    loaded = bpf_prog.prog_load(kind, _PROBE_PROGRAM, "lb_probe")
    if loaded.fd >= 0:
        os.close(loaded.fd)
    return loaded.errno


@cache
def can_load() -> int:
    """Return 0 if this process may load XDP programs, else the errno (EPERM: no rights; EINVAL, ENOSYS: no BPF)."""
    return _loads(ProgType.XDP)


@cache
def has_tcx() -> bool:
    """Return whether this kernel attaches tc programs by link (TCX, Linux 6.6). Queries a device that cannot exist."""
    loaded = bpf_prog.prog_load(ProgType.SCHED_CLS, _PROBE_PROGRAM, "lb_probe")
    if loaded.fd < 0:
        return False
    try:
        bpf_link.link_create(loaded.fd, _NO_SUCH_INDEX, AttachType.TCX_INGRESS)
    except OSError as error:
        return error.errno == errno.ENODEV
    finally:
        os.close(loaded.fd)
    return True


@cache
def has_socket_programs() -> bool:
    """Return whether this kernel runs programs for the sockets of a cgroup (CONFIG_CGROUP_BPF)."""
    return _loads_for_connect(returning(1))


@cache
def has_set_retval() -> bool:
    """Return whether socket programs may set the error of a call that they refuse (Linux 5.18)."""
    return _loads_for_connect(insn(MOV64_IMM, dst=1) + insn(CALL, imm=SET_RETVAL) + returning(0))


def _loads_for_connect(code: bytes) -> bool:
    kind, attach_type = ProgType.CGROUP_SOCK_ADDR, AttachType.INET4_CONNECT
    loaded = bpf_prog.prog_load(kind, code, "lb_probe", expected_attach_type=attach_type)
    if loaded.fd >= 0:
        os.close(loaded.fd)
    return loaded.fd >= 0


def jit_enabled() -> bool | None:
    """Return whether the kernel compiles programs to machine code; None if it does not report it."""
    try:
        return Path("/proc/sys/net/core/bpf_jit_enable").read_text(encoding="ascii").strip() != "0"
    except OSError:
        return None


def has_native_xdp(ifindex: int) -> bool | None:
    """Return whether a device's driver runs XDP programs; None if the kernel does not report it (before 6.3, no such device)."""
    found = xdp_features(ifindex).get(ifindex)
    return None if found is None else bool(found & XdpFeature.BASIC)


class XdpFeature(IntFlag):
    """Bits of a device's features. Source: enum netdev_xdp_act."""

    BASIC = 1  # runs programs: drop, pass, TX
    REDIRECT = 2  # its programs may redirect
    NDO_XMIT = 4  # accepts frames that XDP programs redirect to it


def xdp_features(ifindex: int = 0) -> dict[int, XdpFeature]:
    """Return the features of all devices of this netns (or of one) by ifindex; {} where the kernel does not report them."""
    with _open() as netlink:
        family = _family(netlink).get(_FAMILY_ID)
        if family is None:
            return {}
        value = struct.pack("<I", ifindex) if ifindex else b""
        _send(netlink, struct.unpack("<H", family)[0], _DEV_GET, _DEV_IFINDEX, value)
        out = {}
        for found in _answers(netlink, dump=not ifindex):
            raw = found.get(_DEV_XDP_FEATURES)
            if raw is not None:
                out[int.from_bytes(found[_DEV_IFINDEX], "little")] = XdpFeature(int.from_bytes(raw, "little"))
        return out


def feature_events() -> socket.socket | None:
    """Return a socket that receives a message when a device's features change; None if the kernel does not report them."""
    netlink = _open()
    try:
        for name, group in _groups(_family(netlink).get(_MCAST_GROUPS, b"")):
            if name == b"mgmt\0":
                netlink.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
                netlink.setblocking(False)
                return netlink
    except OSError:
        pass
    netlink.close()
    return None


def drain(netlink: socket.socket) -> None:
    """Discard pending messages: the reader requests all features again."""
    with contextlib.suppress(OSError):  # BlockingIOError: no more; ENOBUFS: some were lost, which does not matter
        while netlink.recv(1 << 16):
            pass


def _open() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_GENERIC)
    netlink.settimeout(_TIMEOUT_S)
    return netlink


def _family(netlink: socket.socket) -> Attributes:
    _send(netlink, _CTRL, _CTRL_GETFAMILY, _FAMILY_NAME, b"netdev\0")
    return next(_answers(netlink, dump=False), {})


def _groups(raw: bytes) -> Iterator[tuple[bytes, int]]:
    for group in _attributes(raw).values():
        inner = _attributes(group)
        yield inner.get(_MCAST_NAME, b""), int.from_bytes(inner.get(_MCAST_ID, b""), "little")


def _send(netlink: socket.socket, family: int, command: int, attribute: int, value: bytes) -> None:
    """Send one request with one attribute; without a value, for all there are."""
    padded = struct.pack("<HH", 4 + len(value), attribute) + value + bytes(-len(value) % 4) if value else b""
    flags = _REQUEST if value else _REQUEST | _DUMP
    body = struct.pack("<BBH", command, 1, 0) + padded
    netlink.send(struct.pack("<IHHII", 16 + len(body), family, flags, 1, 0) + body)


def _answers(netlink: socket.socket, *, dump: bool) -> Iterator[Attributes]:
    """Yield the attributes of each answer, of one or of a whole dump. An error ends it."""
    while True:
        try:
            data = netlink.recv(1 << 17)
        except OSError:
            return
        at = 0
        while at + 16 <= len(data):
            length, kind = struct.unpack_from("<IH", data, at)
            if kind in (_ERROR, _DONE) or length < _HEADERS:
                return
            yield _attributes(data[at + _HEADERS : at + length])
            at += length + (-length % 4)
        if not dump:
            return


def _attributes(data: bytes) -> Attributes:
    out: Attributes = {}
    at = 0
    while at + 4 <= len(data):
        size, name = struct.unpack_from("<HH", data, at)
        if size < 4:
            break
        out[name & _ATTRIBUTE_MASK] = data[at + 4 : at + size]
        at += size + (-size % 4)
    return out
