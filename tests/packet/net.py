"""An empty network namespace with the devices of the packet tests: lb0 and lb1 (NICs), pod0 (a pod's veth).

BPF_PROG_TEST_RUN takes ifindex and FIB from the caller's namespace, so every run is inside one of these and never uses the
machine's own routes.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.packet import craft

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: int) -> None:
    if getattr(_libc, name)(*args):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


SETUP = """
link set lo up
link add lb0 address {node} type veth peer name peer0 address {router}
link add lb1 address {node2} type veth peer name peer1 address {backend}
link add pod0 address {pod} type veth peer name eth0 address {local}
link set lb0 up
link set lb1 up
link set pod0 up
link set peer0 up
link set peer1 up
link set eth0 up
"""
SETUP_FAMILY = """
addr add {f.node}/{bits} dev lb0 {nodad}
addr add {f.node2}/{bits} dev lb1 {nodad}
neigh add {f.router} lladdr {router} dev lb0 nud permanent
neigh add {f.router2} lladdr {backend} dev lb1 nud permanent
route add default via {f.router} dev lb0
route add {f.remote_net}{zero}/{wide} via {f.router2} dev lb1
route add {f.local_net}{zero}/{wide} dev pod0
"""
SYSCTL = ("ipv4/ip_forward", "ipv6/conf/all/forwarding")


class Net:
    """A private namespace held by a file descriptor; gone when closed."""

    def __init__(self) -> None:
        """Make the namespace and its devices; the calling thread ends where it was."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("unshare", CLONE_NEWNET)
            self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._fill()
            finally:
                _call("setns", home, CLONE_NEWNET)
        finally:
            os.close(home)

    def _fill(self) -> None:
        for name in SYSCTL:
            with open(f"/proc/sys/net/{name}", "w") as out:
                out.write("1")
        macs = {"node": craft.NODE_MAC, "node2": craft.NODE2_MAC, "pod": craft.POD_MAC,
                "router": craft.ROUTER_MAC, "backend": craft.BACKEND_MAC, "local": craft.LOCAL_MAC}  # fmt: skip
        _ip(SETUP.format(**macs))
        for family, bits, wide, zero, nodad in ((craft.V4, 24, 16, "0", ""), (craft.V6, 64, 64, "", "nodad")):
            _ip(SETUP_FAMILY.format(f=family, bits=bits, wide=wide, zero=zero, nodad=nodad, **macs), family.version)
        self.lb0, self.lb1, self.pod0 = (_ifindex(name) for name in ("lb0", "lb1", "pod0"))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Run the block in this namespace."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call("setns", self.fd, CLONE_NEWNET)
            try:
                yield
            finally:
                _call("setns", home, CLONE_NEWNET)
        finally:
            os.close(home)

    def run(self, line: str) -> None:
        """Run one `ip` command in this namespace, without the word ip."""
        with self.inside():
            subprocess.run(["ip", *line.split()], check=True)

    def close(self) -> None:
        """Remove the namespace."""
        os.close(self.fd)


def _ip(batch: str, version: int = 4) -> None:
    subprocess.run(["ip", f"-{version}", "-batch", "-"], input=batch, text=True, check=True)


def _ifindex(name: str) -> int:
    import socket

    return socket.if_nametoindex(name)
