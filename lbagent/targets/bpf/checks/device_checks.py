"""Whether devices exist and have programs, and whether the kernel forwards and accepts packets from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lbagent.bpf.load.devices import strict_devices
from lbagent.kernel.net_sysctl import net_sysctl
from lbagent.model.check import Check, Level, Result, When
from lbagent.net.snapshot import NodeNetwork
from lbagent.targets.bpf.checks.node_context import NodeContext
from lbagent.targets.bpf.checks.offline_context import OfflineContext
from lbagent.targets.bpf.checks.running_context import RunningContext
from lbagent.targets.forwarding_checks import FORWARDING_OFF


def device_missing(context: NodeContext) -> Iterator[Result]:
    """Report the missing devices of --device, with the new name of a renamed one."""
    for each in context.missing_devices():
        values = {"device": each.name, "problem": each.problem}
        if each.new_name:
            text = f"{each.problem}; it was renamed to {each.new_name}"
            yield Result(each.name, text=text, remedy=f"name it {each.name} again, or give --device {each.new_name}")
        else:
            yield Result(each.name, values, level=each.level, exit_code=each.exit_code)


def device_not_attached(context: RunningContext) -> Iterator[Result]:
    """Report the devices of --device without programs, and those where replies of remote backends meet no program."""
    keeper = context.plane.devices
    if keeper is None:
        return
    attached = {item.target.name for item in keeper.attached}
    for name, problem in keeper.problems.items():
        if name not in keeper.chosen.missing:
            yield Result(name, text=problem)
    for name in keeper.chosen.names:
        if name not in attached and name not in keeper.problems:
            yield Result(name, {"device": name})
    if context.config.serves_sockets_alone:
        return
    attached |= {link.name for link in keeper.renamed.values()}
    for name in unattached_outputs(context.network, context.plane.follower.finder.outputs, attached):
        text = f"remote backends are reached through {name}, where no program is attached: their replies are not translated"
        yield Result(f"output {name}", text=text, remedy=f"add --device {name}")


def unattached_outputs(network: NodeNetwork, outputs: Iterable[int], attached: Iterable[str]) -> list[str]:
    """Return the devices by which remote backends are reached and whose replies meet no program, by name.

    A VLAN's frames pass the programs of the device below it.
    """
    names = set(attached)
    out = set()
    for index in outputs:
        link = network.links.get(index)
        below = network.links.get(link.parent) if link and link.kind == "vlan" else None
        if link and link.name not in names and not (below and below.name in names):
            out.add(link.name)
    return sorted(out)


def reverse_path_strict(context: NodeContext) -> Iterator[Result]:
    """Report the devices with a strict filter whose backends then cannot answer processes of this node.

    A translated reply to this node itself has the VIP as its source, and the route to a VIP leads by the default route's device.
    With socket programs replies are not translated.
    """
    network = context.network
    if context.has_socket_programs or network is None:
        return
    by_default = {network.links[index].name for index in network.routes4.default_devices if index in network.links}
    names = [name for name in dict.fromkeys(context.devices) if name not in by_default]
    if by_default and (strict := strict_devices(names)):
        yield Result("devices", {"devices": ", ".join(strict)})


def reverse_path_strict_everywhere(_context: OfflineContext) -> Iterator[Result]:
    """Read the filter that all devices have."""
    if net_sysctl("ipv4/conf/all/rp_filter") == "1":
        yield Result()


REVERSE_PATH_STRICT: Check[NodeContext] = Check(
    "reverse-path-strict",
    "strict reverse path filters of devices",
    reverse_path_strict,
    "strict reverse path filter on {devices}: processes of this node get no answer from IPv4 Services whose backends are"
    " behind it",
    "sysctl -w net.ipv4.conf.DEVICE.rp_filter=2 for each of them, and net.ipv4.conf.default.rp_filter=2 for later ones",
    when=When.BOTH,
)
CHECKS: tuple[Check[Any], ...] = (
    Check(
        "device-missing",
        "whether each `--device` is there",
        device_missing,
        "{problem}",
        "bring {device} back, or remove it from --device; `ip link` lists the devices",
        when=When.BOTH,
    ),
    Check(
        "device-not-attached",
        "whether devices have programs",
        device_not_attached,
        "device {device} has no program attached: it takes no traffic",
        "see `lbagent doctor`; the agent retries",
    ),
    FORWARDING_OFF,
    REVERSE_PATH_STRICT,
    Check(
        "reverse-path-strict-everywhere",
        "the strict reverse path filter of all devices",
        reverse_path_strict_everywhere,
        "strict reverse path filter: replies that come in by another device than the route's are dropped",
        "sysctl -w net.ipv4.conf.all.rp_filter=2 if routing is asymmetric",
        when=When.OFFLINE,
        level=Level.NOTE,
    ),
)
