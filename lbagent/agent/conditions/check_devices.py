"""Whether a device is gone, renamed or without programs, and whether replies come in by a device where no program sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName
from lbagent.bpf.load.devices import strict_devices
from lbagent.config.device_names import is_name
from lbagent.targets.bpf.device_keeper import unattached_outputs

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents


def check_devices(components: AgentComponents) -> Iterator[Condition]:
    """Name the devices of the configuration that take no traffic."""
    keeper, network = components.devices, components.network.network
    if keeper is None:
        return
    attached = {item.target.name for item in keeper.attached}
    for name, problem in keeper.problems.items():
        if name in keeper.chosen.missing and not is_name(name) and keeper.chosen.names:
            continue  # a pattern may stand for no device beside another one
        if name in keeper.chosen.missing:
            now = network.links.get(keeper.last_index.get(name, 0))
            text = f"{problem}; it was renamed to {now.name}" if now else problem
            remedy = (
                f"name it {name} again, or give --device {now.name}"
                if now
                else f"bring {name} back, or take it out of --device"
            )
            yield Condition(ConditionName.DEVICE_MISSING, name, text, remedy)
        else:
            yield Condition(
                ConditionName.DEVICE_NOT_ATTACHED, name, problem, "`lbagent doctor` tells more; it is tried again"
            )
    for name in keeper.chosen.names:
        if name not in attached and name not in keeper.problems:
            yield Condition(
                ConditionName.DEVICE_NOT_ATTACHED,
                name,
                f"device {name} has no program attached: it takes no traffic",
                "`lbagent doctor` tells more; it is tried again",
            )


def check_outputs(components: AgentComponents) -> Iterator[Condition]:
    """Name the devices by which remote backends are reached and where their replies pass no program."""
    if components.devices is None or components.config.serves_sockets_alone:
        return
    network = components.network
    attached = {item.target.name for item in components.devices.attached}
    attached |= {link.name for link in components.devices.renamed.values()}
    for name in unattached_outputs(network.network, network.finder.outputs, attached):
        text = f"remote backends are reached through {name}, where no program is attached: their replies are not translated"
        yield Condition(ConditionName.DEVICE_NOT_ATTACHED, f"output {name}", text, f"add --device {name}")


def check_reverse_path(components: AgentComponents) -> Iterator[Condition]:
    """Name what a strict reverse path filter breaks. Reads /proc of this network namespace."""
    if components.config.has_socket_programs:
        return  # a backend's answers to the node's own processes come as what they are
    network, devices = components.network.network, components.devices
    names = {item.target.name for item in devices.attached} if devices else set()
    by_default = {network.links[index].name for index in network.routes4.default_devices if index in network.links}
    strict = strict_devices(sorted(names - by_default)) if by_default else []
    if strict:
        text = f"strict reverse path filter on {', '.join(strict)}: processes of this node get no answer from IPv4 Services"
        yield Condition(
            ConditionName.REVERSE_PATH_STRICT,
            "devices",
            f"{text} whose backends are behind it",
            "sysctl -w net.ipv4.conf.DEVICE.rp_filter=2",
        )
