"""Is forwarding on in the kernel? Without it no FIB look-up answers, and nothing reaches a pod or another host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName
from lbagent.model.family import Family

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents

_PROC = Path("/proc/sys/net")
_SWITCH = {Family.IPV4: "ipv4/ip_forward", Family.IPV6: "ipv6/conf/all/forwarding"}


def check_forwarding(components: AgentComponents) -> Iterator[Condition]:
    """Name the families whose forwarding is off while a service of theirs has backends beyond this node's own sockets."""
    if components.config.serves_sockets_alone:
        return
    usage = components.bpf.usage()
    needed = {family for family in components.network.finder.forwards if usage[family.map("backend")][0]}
    devices = {item.target.name for item in components.devices.attached} if components.devices else set()
    for family, switch in _SWITCH.items():
        if family not in needed:
            continue
        name = f"IPv{family}"
        if _value(switch) == "0":
            key = switch.replace("/", ".")
            text = f"{name} forwarding is off: no packet reaches a pod or another host"
            yield Condition(ConditionName.FORWARDING_OFF, name, text, f"sysctl -w net.{key}=1")
            continue
        for device in sorted(devices):
            if _value(f"ipv{family}/conf/{device}/forwarding") == "0":
                text = (
                    f"{name} forwarding is off on device {device}: what comes in there reaches no pod and no other host"
                )
                remedy = f"sysctl -w net/ipv{family}/conf/{device}/forwarding=1"
                yield Condition(ConditionName.FORWARDING_OFF, f"{name} {device}", text, remedy)


def _value(name: str) -> str:
    try:
        return (_PROC / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""  # the family is not there, or the device went
