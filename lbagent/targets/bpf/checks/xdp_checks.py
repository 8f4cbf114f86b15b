"""How the devices of --device support XDP programs, before the start."""

from __future__ import annotations

from collections.abc import Iterator

from lbagent.bpf.hooks import TC_INGRESS, XDP_GENERIC, Hook
from lbagent.bpf.load.devices import MAX_NATIVE_XDP_MTU, Device
from lbagent.bpf.load.links import linked_program
from lbagent.bpf.load.xdp_send import refusal
from lbagent.kernel import features
from lbagent.model.check import Check, Level, Result, When
from lbagent.targets.bpf.checks.offline_context import OfflineContext

# Hooks that every driver has.
_DRIVER_INDEPENDENT = {
    XDP_GENERIC.name: "generic XDP (slow: a packet buffer is made first)",
    TC_INGRESS.name: "tc",
}


def no_device_given(context: OfflineContext) -> Iterator[Result]:
    """Report the devices that --device could use."""
    if not context.config.device:
        names = ", ".join(name for name, item in context.present.items() if not item.loopback)
        yield Result(values={"names": names or "none"})


def no_native_xdp(context: OfflineContext) -> Iterator[Result]:
    """Return the hook that each device gets."""
    for device, hook in _devices(context):
        values = _values(device) | {"hook": _DRIVER_INDEPENDENT.get(hook.name, "native XDP")}
        native = features.has_native_xdp(device.ifindex)
        if hook.name in _DRIVER_INDEPENDENT or native:
            yield Result(device.name, values, level=Level.OK)
        elif native is None:
            text = f"{_named(device)}: native XDP if its driver has it, else tc"
            yield Result(device.name, values, text=text, remedy="", level=Level.NOTE)
        else:
            yield Result(device.name, values)


def mtu_too_large(context: OfflineContext) -> Iterator[Result]:
    """Compare MTUs with the largest one of native XDP."""
    for device, hook in _devices(context):
        if hook.fallback and device.mtu > MAX_NATIVE_XDP_MTU:
            yield Result(device.name, _values(device) | {"limit": MAX_NATIVE_XDP_MTU})


def xdp_on_veth(context: OfflineContext) -> Iterator[Result]:
    """Look for veths that get XDP programs."""
    for device, hook in _devices(context):
        if device.kind == "veth" and hook.xdp_mode:
            yield Result(device.name, _values(device))


def frames_refused(context: OfflineContext) -> Iterator[Result]:
    """Report the devices that accept no frames from XDP programs.

    Of the devices without programs, only those count by which backends of other nodes can be reached: single pods are reached
    through the kernel's stack in any case.
    """
    offered = features.xdp_features()
    for device, hook in _devices(context):
        refused = refusal(device.kind, offered.get(device.ifindex), runs=True)
        runs_xdp = hook.xdp_mode and hook is not XDP_GENERIC
        if refused and runs_xdp and (device.kind or device.xdp_prog_id):
            yield Result(device.name, _values(device) | {"why": refused.reason}, remedy=refused.remedy)
    for name, device in sorted(context.present.items()) if context.uses_xdp else ():
        if name in context.ingress or device.kind in ("", "veth"):
            continue
        if refused := refusal(device.kind, offered.get(device.ifindex)):
            yield Result(name, _values(device) | {"why": refused.reason}, remedy=refused.remedy)


def foreign_xdp(context: OfflineContext) -> Iterator[Result]:
    """Find XDP programs of others."""
    for device, hook in _devices(context):
        ours = linked_program(context.pins, context.ingress[device.name].target, hook)
        if hook.xdp_mode and device.xdp_prog_id and device.xdp_prog_id != ours:
            yield Result(device.name, _values(device) | {"id": device.xdp_prog_id})


def pod_devices(context: OfflineContext) -> Iterator[Result]:
    """Report the devices of pods."""
    if context.config.pod_device:
        yield Result(values={"names": ", ".join(context.pod_devices) or "none yet"})


def _devices(context: OfflineContext) -> Iterator[tuple[Device, Hook]]:
    for name, attachment in context.ingress.items():
        yield context.present[name], attachment.hook


def _values(device: Device) -> dict[str, object]:
    return {"device": device.name, "kind": device.kind or "NIC", "mtu": device.mtu}


def _named(device: Device) -> str:
    return "device {device} ({kind}, MTU {mtu})".format_map(_values(device))


CHECKS = (
    Check(
        "no-device-given",
        "whether `--device` is given",
        no_device_given,
        "no --device is given; this machine has {names}",
        "give --device for each device by which service traffic arrives",
        when=When.OFFLINE,
        level=Level.NOTE,
    ),
    Check(
        "no-native-xdp",
        "the hook that each `--device` gets",
        no_native_xdp,
        "device {device} ({kind}): its driver has no native XDP",
        "use --attach auto or tc",
        good="device {device} ({kind}, MTU {mtu}): {hook}",
        when=When.OFFLINE,
    ),
    Check(
        "mtu-too-large",
        "the MTU of devices with native XDP",
        mtu_too_large,
        "device {device}: MTU {mtu} is more than one page; most drivers refuse native XDP then",
        "use --attach tc, or an MTU of at most {limit}",
        when=When.OFFLINE,
    ),
    Check(
        "xdp-on-veth",
        "veths with XDP",
        xdp_on_veth,
        "device {device} is a veth with XDP: packets of local sockets arrive with unfinished checksums, TCP loses its offloads",
        "use --attach tc, or `ethtool -K PEER tx off gro on` at the other end",
        when=When.OFFLINE,
    ),
    Check(
        "frames-refused",
        "devices that take no frames from XDP programs",
        frames_refused,
        "device {device} ({kind}): frames that leave by it go by tc, not XDP: {why}",
        when=When.OFFLINE,
        level=Level.NOTE,
    ),
    Check(
        "foreign-xdp",
        "XDP programs of others on a `--device`",
        foreign_xdp,
        "device {device} already runs an XDP program that is not lbagent's (id {id})",
        "ip link set dev {device} xdp off, or use --attach tc",
        when=When.OFFLINE,
        level=Level.ERROR,
    ),
    Check(
        "pod-devices",
        "the devices that `--pod-device` matches",
        pod_devices,
        good="pod devices: {names} (tc)",
        when=When.OFFLINE,
        level=Level.OK,
    ),
)
