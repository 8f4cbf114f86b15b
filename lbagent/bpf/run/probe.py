"""What `lbagent doctor` says: this machine, its devices and settings, what will be used, what to change.

Reads only; nothing is attached or written. Works without root as far as the kernel allows.
"""

from __future__ import annotations

import errno
import os
import platform
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from lbagent.bpf.compiler.c_source import ARTIFACT_PATH
from lbagent.bpf.compiler.compile import bcc_version
from lbagent.bpf.hooks import TC_INGRESS, XDP, XDP_GENERIC, AttachPointKind
from lbagent.bpf.load.attach import Attachment, wanted_attachments
from lbagent.bpf.load.devices import MAX_NATIVE_XDP_MTU, default_route_devices, devices, no_such_device, strict_devices
from lbagent.bpf.load.links import linked_program, pinned_links
from lbagent.bpf.load.loader import MIN_KERNEL
from lbagent.bpf.load.xdp_send import GRO_ADVICE, refusal
from lbagent.config.device_names import AUTO, DevicesPresent, choose_devices, is_name
from lbagent.defaults import DEFAULT_BPFFS
from lbagent.errors import LbError
from lbagent.kernel import bpffs, features, nftables
from lbagent.kernel.mounts import PRIVATE_ADVICE, first_cgroup, is_private, open_cgroup, would_be_private
from lbagent.maps.frontend_codec import flags_of, frontend_of, split_service_key
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.pins import pin_dir
from lbagent.model.flags import ServiceFlags

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from lbagent.bpf.load.devices import Device

MAX_SHOWN_PORTS = 5
NODE_PORTS = (30000, 32767)  # kube-apiserver's default --service-node-port-range
_OTHERS = {"kube-proxy": "Services are balanced twice", "cilium-agent": "Cilium balances Services as well"}
_ADVICE = {"kube-proxy": "let only one of them serve a Service; `lbagent doctor --kubernetes` names what it leaves"}


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"  # works, good to know
    WARNING = "warning"  # works worse, or not for some packets
    ERROR = "error"  # the agent will not start or not forward


@dataclass(frozen=True)
class Finding:
    """One thing found: what is so, what to do about it ('' when nothing), and the exit code of an error."""

    level: Level
    what: str
    advice: str = ""
    exit_code: int = 1


@dataclass(frozen=True)
class ProbeOptions:
    """What the doctor needs of the configuration."""

    device: Sequence[str] = ()
    pod_device: Sequence[str] = ()
    attach: str = "auto"
    bpffs: str = DEFAULT_BPFFS
    artifact: str = ""
    snat_ports: tuple[int, int] = (1024, 29999)
    socket_lb: bool = False
    cgroup: str = ""


def findings(question: ProbeOptions) -> list[Finding]:
    """Examine everything; the order is that of a start: rights, kernel, programs, file system, devices, network."""
    out = [*_rights(), *_kernel(), *_programs(question), *_bpffs(question)]
    present = devices()
    out += _devices(question, present)
    out += [*_ports(question), *_sockets(question), *_node_ports(question)]
    out += [*_forwarding(), *_firewall(question), *_other_balancers(present)]
    return out


def _rights() -> Iterator[Finding]:
    error = features.can_load()
    if error == 0:
        yield Finding(Level.OK, "BPF programs can be loaded")
    elif error in (errno.EPERM, errno.EACCES):
        yield Finding(
            Level.ERROR,
            "no permission to load BPF programs",
            "run as root (or with CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)",
        )
    else:
        yield Finding(
            Level.ERROR,
            f"this kernel refuses BPF programs: {os.strerror(error)}",
            "use a kernel with CONFIG_BPF_SYSCALL",
        )


def _kernel() -> Iterator[Finding]:
    release, version = os.uname().release, features.kernel_version()
    oldest = ".".join(map(str, MIN_KERNEL))
    if version >= MIN_KERNEL:
        yield Finding(Level.OK, f"Linux {release} on {platform.machine()} ({oldest} or newer is needed)")
    else:
        yield Finding(Level.ERROR, f"Linux {release} is too old", f"lbagent needs Linux {oldest} or newer")
    jit = features.jit_enabled()
    if jit is False:
        yield Finding(
            Level.WARNING,
            "the BPF JIT is off: packets cost several times as much",
            "sysctl -w net.core.bpf_jit_enable=1",
        )
    elif jit:
        yield Finding(Level.OK, "the BPF JIT is on")
    if features.can_load() == 0:
        way = "TCX links" if features.has_tcx() else "clsact filters (TCX needs Linux 6.6)"
        yield Finding(Level.OK if features.has_tcx() else Level.NOTE, f"tc programs are attached by {way}")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        yield Finding(Level.NOTE, "this kernel has no BTF; lbagent does not need it")


def _programs(question: ProbeOptions) -> Iterator[Finding]:
    path = Path(question.artifact or ARTIFACT_PATH)
    version = bcc_version()
    if os.access(path, os.R_OK):  # this user may have no right to look
        yield Finding(Level.OK, f"built programs: {path}")
        if not version:
            yield Finding(Level.NOTE, "BCC is not installed; only `lbagent bpf build` needs it")
    elif question.artifact:
        yield Finding(
            Level.ERROR,
            f"--artifact {path} does not exist, or this user may not read it",
            "leave the flag out, or make the file with `lbagent bpf build -o FILE`",
        )
    elif version:
        yield Finding(Level.NOTE, f"programs are not built yet; BCC {version} will build them", "lbagent bpf build")
    else:
        yield Finding(
            Level.ERROR, f"no built programs at {path}, and no BCC to build them", "apt install python3-bpfcc"
        )


def _bpffs(question: ProbeOptions) -> Iterator[Finding]:
    folder = Path(os.path.realpath(question.bpffs))  # need not exist, and this user may have no right to look
    mounted = not {folder, *folder.parents}.isdisjoint(bpffs.mounts())
    if is_private(folder, mounted_here=False) if mounted else would_be_private():
        what = (
            f"{question.bpffs}: this mount namespace is private, so programs and maps end with the last process in it"
        )
        yield Finding(Level.WARNING, what, PRIVATE_ADVICE)
    elif mounted:
        yield Finding(Level.OK, f"{question.bpffs} is on a bpf file system")
    else:
        yield Finding(Level.NOTE, f"no bpf file system at {question.bpffs}; the agent mounts one")


def _devices(question: ProbeOptions, present: dict[str, Device]) -> Iterator[Finding]:
    if not question.device:
        names = ", ".join(name for name, item in present.items() if not item.loopback)
        yield Finding(
            Level.NOTE,
            f"no --device is given; this machine has {names or 'none'}",
            "give --device for each device by which service traffic arrives",
        )
    loopback = [name for name, item in present.items() if item.loopback]
    defaults = default_route_devices() if AUTO in question.device else ()
    chosen = choose_devices(question.device, DevicesPresent(present, loopback, defaults), question.pod_device)
    no_start = not chosen.names and all(map(is_name, question.device))
    for word, sentence in chosen.missing.items():
        if no_start:
            error = no_such_device(word, (name for name in present if name not in loopback))
            yield Finding(Level.ERROR, str(error), "see `ip link`", error.exit_code)
        else:
            yield Finding(Level.WARNING, sentence, "see `ip link`; the agent starts without it")
    xdp = False
    for name in chosen.names:
        ingress, *_ = wanted_attachments(question.attach, [name], (), present)
        yield from _device(Path(question.bpffs) / "v1", present[name], ingress)
        xdp |= ingress.hook is XDP
    if xdp:
        yield from _sent_by_tc(chosen.names, present)
    matched = [item for item in wanted_attachments("tc", chosen.names, question.pod_device, present) if item.optional]
    if question.pod_device:
        pods = sorted({item.target.name for item in matched})
        yield Finding(Level.OK, f"pod devices: {', '.join(pods) or 'none yet'} (tc)")
    else:
        pods = []
    if not _has_socket_programs(question):
        yield from _strict_reverse_path([*chosen.names, *pods])


def _sent_by_tc(names: Collection[str], present: dict[str, Device]) -> Iterator[Finding]:
    """Name the other devices by which XDP programs cannot send; those of single pods are reached through the stack anyway."""
    told = features.xdp_features()
    found = [
        f"{name} ({item.kind})"
        for name, item in sorted(present.items())
        if item.kind not in ("", "veth") and name not in names and refusal(item.kind, told.get(item.ifindex))
    ]
    if found:
        yield Finding(
            Level.NOTE,
            f"packets of Services that leave by {', '.join(found)} go by tc: these devices take no frames from XDP",
        )


def _strict_reverse_path(names: Iterable[str]) -> Iterator[Finding]:
    """A reply to this node itself comes up as one from the VIP, and the route to a VIP leads by the default route's device."""
    default = default_route_devices()
    strict = strict_devices(name for name in names if name not in default)
    if strict and default:
        yield Finding(
            Level.WARNING,
            f"strict reverse path filter on {', '.join(strict)}: processes of this node get no answer from IPv4 Services whose"
            " backends are behind it",
            "sysctl -w net.ipv4.conf.DEVICE.rp_filter=2 for each of them, and net.ipv4.conf.default.rp_filter=2 for later ones",
        )


# What is said of hooks that every driver has.
_DRIVER_INDEPENDENT = {
    XDP_GENERIC.name: "generic XDP (slow: a packet buffer is made first)",
    TC_INGRESS.name: "tc",
}


def _device(root: Path, device: Device, ingress: Attachment) -> Iterator[Finding]:
    hook, name, kind = ingress.hook, device.name, device.kind or "NIC"
    native = features.has_native_xdp(device.ifindex)
    if how := _DRIVER_INDEPENDENT.get(hook.name):
        yield Finding(Level.OK, f"device {name} ({kind}, MTU {device.mtu}): {how}")
    elif native is None:
        yield Finding(Level.NOTE, f"device {name} ({kind}, MTU {device.mtu}): native XDP if its driver has it, else tc")
    elif native:
        yield Finding(Level.OK, f"device {name} ({kind}, MTU {device.mtu}): native XDP")
    else:
        yield Finding(Level.WARNING, f"device {name} ({kind}): its driver has no native XDP", "use --attach auto or tc")
    if hook.fallback and device.mtu > MAX_NATIVE_XDP_MTU:
        yield Finding(
            Level.WARNING, f"device {name}: MTU {device.mtu} is more than one page; most drivers refuse native XDP then",
            f"use --attach tc, or an MTU of at most {MAX_NATIVE_XDP_MTU}",
        )  # fmt: skip
    if device.kind == "veth" and hook.xdp_mode:
        yield Finding(
            Level.WARNING,
            f"device {name} is a veth with XDP: packets of local sockets arrive with unfinished checksums, TCP loses its offloads",
            "use --attach tc, or `ethtool -K PEER tx off gro on` at the other end",
        )
    refused = refusal(device.kind, features.xdp_features(device.ifindex).get(device.ifindex), runs=True)
    if hook.xdp_mode and hook is not XDP_GENERIC and refused and (device.kind or device.xdp_prog_id):
        yield Finding(
            Level.NOTE, f"device {name} ({kind}): frames that leave by it go by tc, not XDP: {refused}",
            GRO_ADVICE if GRO_ADVICE in refused else "",
        )  # fmt: skip
    ours = linked_program(root, ingress.target, hook)
    if hook.xdp_mode and device.xdp_prog_id and device.xdp_prog_id != ours:
        yield Finding(
            Level.ERROR, f"device {name} already runs an XDP program that is not lbagent's (id {device.xdp_prog_id})",
            f"ip link set dev {name} xdp off, or use --attach tc",
        )  # fmt: skip


def _ports(question: ProbeOptions) -> Iterator[Finding]:
    first, last = question.snat_ports
    local = _sysctl("ipv4/ip_local_port_range").split()
    ranges = {"the NodePort range": NODE_PORTS}
    if len(local) == 2:
        ranges["the ephemeral range of local sockets (net.ipv4.ip_local_port_range)"] = (int(local[0]), int(local[1]))
    clash = [f"{what} {low}-{high}" for what, (low, high) in ranges.items() if first <= high and low <= last]
    for what in clash:
        overlap = f"--snat-ports {first}-{last} overlaps {what}: connections may be mixed up"
        yield Finding(Level.WARNING, overlap, "choose a range that does not overlap")
    if not clash:
        yield Finding(Level.OK, f"SNAT ports {first}-{last}: no overlap with NodePorts or local sockets")


def _sockets(question: ProbeOptions) -> Iterator[Finding]:
    """What the node's own processes reach Services by."""
    if not question.socket_lb:
        return
    path = question.cgroup or first_cgroup()
    if not path:
        yield Finding(Level.ERROR, "--socket-lb needs cgroup2, which is not mounted", "mount it, or use --no-socket-lb")
        return
    try:
        os.close(open_cgroup(path))
    except LbError as error:
        yield Finding(Level.ERROR, str(error), exit_code=error.exit_code)
        return
    if features.can_load() == 0 and not features.has_socket_programs():
        advice = "use --no-socket-lb, or a kernel with CONFIG_CGROUP_BPF"
        yield Finding(Level.ERROR, "this kernel runs no programs for the sockets of a cgroup", advice)
        return
    yield Finding(Level.OK, f"processes of this node in cgroup {path} reach Services by socket programs")
    if features.can_load() == 0 and not features.has_set_retval():
        text = "a refused connection says EPERM, not ECONNREFUSED: this kernel lets no program choose (Linux 5.18 does)"
        yield Finding(Level.NOTE, text)


def _has_socket_programs(question: ProbeOptions) -> bool:
    """Say whether the node's own processes reach Services by socket programs: now, or with these settings."""
    try:
        links = pinned_links(pin_dir(question.bpffs))
    except OSError:
        links = []  # this user may not look
    return question.socket_lb or any(target.kind is AttachPointKind.CGROUP for target, _ in links)


def _node_ports(question: ProbeOptions) -> Iterator[Finding]:
    """What the node sends to an address of its own leaves by no device, so no program but those of sockets sees it."""
    if _has_socket_programs(question):
        return
    try:
        with KernelMaps.open(question.bpffs, create=False) as maps:
            rows = [*maps.items("lb4_service"), *maps.items("lb6_service")]
    except (LbError, OSError):
        return  # no agent has run here, or this user may not look
    of_node = ServiceFlags.NODE_PORT | ServiceFlags.HOST_PORT
    frontends = [frontend_of(split_service_key(key)[0]) for key, value in rows if flags_of(value) & of_node]
    ports = sorted({(item.port, item.protocol.name) for item in frontends})
    if ports:
        more = len(ports) - MAX_SHOWN_PORTS
        words = [f"{port}/{protocol}" for port, protocol in ports[:MAX_SHOWN_PORTS]]
        words += [f"{more} more"] if more > 0 else []
        yield Finding(
            Level.NOTE,
            f"NodePorts and HostPorts ({', '.join(words)}) are served to other hosts and to pods; processes of this node itself"
            " do not reach them at its own addresses",
            "use --socket-lb; or ask the ClusterIP of the Service, or the address of a backend, from the node itself",
        )


def _forwarding() -> Iterator[Finding]:
    for family, name in (("IPv4", "ipv4/ip_forward"), ("IPv6", "ipv6/conf/all/forwarding")):
        if _sysctl(name) == "0":
            key = name.replace("/", ".")
            yield Finding(
                Level.WARNING,
                f"{family} forwarding is off: no packet reaches a pod or another host",
                f"sysctl -w net.{key}=1",
            )
    if _sysctl("ipv4/conf/all/rp_filter") == "1":
        yield Finding(
            Level.NOTE, "strict reverse path filter: replies that come in by another device than the route's are dropped",
            "sysctl -w net.ipv4.conf.all.rp_filter=2 if routing is asymmetric",
        )  # fmt: skip


def _firewall(question: ProbeOptions) -> Iterator[Finding]:
    """Look for rules that drop packets of which conntrack sees one direction only (docs/network.md, "Firewalls beside lbagent")."""
    ruleset = nftables.read_ruleset()
    for chain in nftables.chains_that_drop_invalid(ruleset) if ruleset else ():
        yield Finding(
            Level.WARNING if question.pod_device else Level.NOTE,
            f"nftables: a rule in the chain {chain} drops `ct state invalid`: conntrack sees one direction of the connections"
            " to this node's pods, and takes their packets for invalid",
            f"before that rule add one that accepts what goes to pods, like: nft insert rule {chain} oifname POD-DEVICE accept",
        )


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys/net", name).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _other_balancers(present: dict[str, Device]) -> Iterator[Finding]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add((entry / "comm").read_text(encoding="utf-8", errors="replace").strip())
            except OSError:
                continue
    if "kube-ipvs0" in present:
        found.add("kube-proxy")
    for name in sorted(found & set(_OTHERS)):
        yield Finding(
            Level.WARNING,
            f"{name} is running here: {_OTHERS[name]}",
            _ADVICE.get(name, "let only one of them serve a Service"),
        )
