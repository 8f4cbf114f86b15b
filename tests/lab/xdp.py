"""Small XDP programs of the laboratory itself, written as instructions: building the namespaces needs no compiler."""

from __future__ import annotations

from functools import cache

from lbagent.kernel import bpf_prog
from lbagent.kernel.bpf_prog import ProgType
from lbagent.kernel.opcodes import returning
from lbagent.testing.bpf_test_run import Xdp
from tests.lab.netns import LabError, Namespace, run


def load(insns: bytes, name: str) -> int:
    """Load an XDP program; LabError has the verifier's log."""
    done = bpf_prog.prog_load(ProgType.XDP, insns, name)
    if done.fd < 0:
        done = bpf_prog.prog_load(ProgType.XDP, insns, name, log_level=1)
        raise LabError(f"program {name}: errno {done.errno}\n{done.log[-2000:]}")
    return done.fd


@cache
def pass_program() -> int:
    """Return `return XDP_PASS`, loaded once."""
    return load(returning(Xdp.PASS), "lab_pass")


def attach_pass(space: Namespace, device: str) -> None:
    """Make a device receive frames that an XDP program at its peer sends."""
    attach(space, device, pass_program())


def attach(space: Namespace, device: str, fd: int) -> None:
    """Attach a native XDP program by netlink (it is removed with the device)."""
    from pyroute2 import IPRoute

    with space.entered(), IPRoute() as netlink:
        index = netlink.link_lookup(ifname=device)[0]
        netlink.link("set", index=index, xdp={"attrs": [("IFLA_XDP_FD", fd), ("IFLA_XDP_FLAGS", 4)]})


def detach(space: Namespace, device: str) -> None:
    """Detach a native XDP program."""
    run("ip", "-n", space.name, "link", "set", device, "xdpdrv", "off")
