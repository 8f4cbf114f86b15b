"""Whether the kernel forwards packets. Rows for each data plane that sends packets to other hosts or to pods."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from lbagent.kernel.net_sysctl import net_sysctl
from lbagent.model.check import Check, Result, When
from lbagent.model.family import Family

_SWITCH = {Family.IPV4: "ipv4/ip_forward", Family.IPV6: "ipv6/conf/all/forwarding"}


class ForwardingNode(Protocol):
    """What the check reads, before the start and in the agent."""

    @property
    def forwarding_families(self) -> Collection[Family]:
        """The families whose packets the kernel must forward."""

    @property
    def devices(self) -> Sequence[str]:
        """The devices by which service traffic arrives, with those of pods."""


def forwarding_off(context: ForwardingNode) -> Iterator[Result]:
    """Read the switches of each family, and those of each device: without forwarding every FIB look-up fails."""
    families, devices = context.forwarding_families, sorted(set(context.devices))
    for family, switch in _SWITCH.items():
        name = f"IPv{family}"
        if family not in families:
            continue
        if net_sysctl(switch) == "0":
            yield Result(name, {"family": name, "key": switch.replace("/", ".")})
            continue
        for device in devices:
            if net_sysctl(f"ipv{family}/conf/{device}/forwarding") == "0":
                text = (
                    f"{name} forwarding is off on device {device}: what comes in there reaches no pod and no other host"
                )
                remedy = f"sysctl -w net/ipv{family}/conf/{device}/forwarding=1"
                yield Result(f"{name} {device}", text=text, remedy=remedy)


FORWARDING_OFF: Check[ForwardingNode] = Check(
    "forwarding-off",
    "whether the kernel forwards",
    forwarding_off,
    "{family} forwarding is off: no packet reaches a pod or another host",
    "sysctl -w net.{key}=1",
    when=When.BOTH,
)
