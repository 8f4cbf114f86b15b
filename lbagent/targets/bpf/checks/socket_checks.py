"""How the node's own processes reach Services, and the ports of translated packets."""

from __future__ import annotations

import os
from collections.abc import Iterator

from lbagent.errors import LbError
from lbagent.kernel import features
from lbagent.kernel.mounts import first_cgroup, open_cgroup
from lbagent.kernel.net_sysctl import net_sysctl
from lbagent.kernel.sock_diag import tcp_listeners, udp_sockets
from lbagent.maps.frontend_codec import flags_of, frontend_of, split_service_key, split_target
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.model.check import Check, Level, Result, When
from lbagent.model.flags import ServiceFlags
from lbagent.targets.bpf.checks.offline_context import OfflineContext

MAX_SHOWN_PORTS = 5
NODE_PORTS = (30000, 32767)  # kube-apiserver's default --service-node-port-range


def snat_ports_overlap(context: OfflineContext) -> Iterator[Result]:
    """Compare --snat-ports with other ranges of ports."""
    first, last = context.config.snat_port_range
    local = net_sysctl("ipv4/ip_local_port_range").split()
    ranges = {"the NodePort range": NODE_PORTS}
    if len(local) == 2:
        ranges["the ephemeral range of local sockets (net.ipv4.ip_local_port_range)"] = (int(local[0]), int(local[1]))
    ports, clash = f"{first}-{last}", False
    for what, (low, high) in ranges.items():
        if first <= high and low <= last:
            clash = True
            yield Result(what, {"ports": ports, "range": f"{what} {low}-{high}"})
    if not clash:
        yield Result(values={"ports": ports}, level=Level.OK)


def sockets_not_served(context: OfflineContext) -> Iterator[Result]:
    """Test the requirements of socket programs: a cgroup of cgroup2, and a kernel that runs them."""
    if not context.config.has_socket_programs:
        return
    path = context.config.cgroup or first_cgroup()
    if not path:
        text = "--socket-lb needs cgroup2, which is not mounted"
        yield Result(text=text, remedy="mount it, or use --no-socket-lb")
        return
    try:
        os.close(open_cgroup(path))
    except LbError as error:
        yield Result(text=str(error), remedy="", exit_code=error.exit_code)
        return
    has_none = features.can_load() == 0 and not features.has_socket_programs()
    yield Result(values={"path": path}, level=None if has_none else Level.OK)
    if not has_none and features.can_load() == 0 and not features.has_set_retval():
        text = "a refused connection returns EPERM, not ECONNREFUSED: programs set the error from Linux 5.18 on"
        yield Result("errno", text=text, remedy="", level=Level.NOTE)


def node_ports_not_local(context: OfflineContext) -> Iterator[Result]:
    """Report the ports in the maps that processes of this node do not reach at its own addresses.

    A packet to an address of the node leaves by no device, so only socket programs see it.
    """
    if context.has_socket_programs:
        return
    try:
        with KernelMaps.open(context.config.bpffs, create=False) as maps:
            rows = [*maps.items("lb4_service"), *maps.items("lb6_service")]
    except (LbError, OSError):
        return  # no agent has run here, or no permission
    of_node = ServiceFlags.NODE_PORT | ServiceFlags.HOST_PORT
    frontends = [frontend_of(split_service_key(key)[0]) for key, value in rows if flags_of(value) & of_node]
    ports = sorted({(item.port, item.protocol.name) for item in frontends})
    if ports:
        more = len(ports) - MAX_SHOWN_PORTS
        words = [f"{port}/{protocol}" for port, protocol in ports[:MAX_SHOWN_PORTS]]
        words += [f"{more} more"] if more > 0 else []
        yield Result(values={"ports": ", ".join(words)})


def proxies_missing(context: OfflineContext) -> Iterator[Result]:
    """Report the ports of L7 proxies in the maps at which no socket of this network namespace waits."""
    try:
        with KernelMaps.open(context.config.bpffs, create=False) as maps:
            rows = [*maps.items("lb4_service"), *maps.items("lb6_service")]
        waiting = {(item.local[1], item.protocol) for item in (*tcp_listeners(), *udp_sockets())}
    except (LbError, OSError):
        return  # no agent has run here, or no permission
    masters = [
        (split_service_key(key), value) for key, value in rows if flags_of(value) & ServiceFlags.L7_LOAD_BALANCER
    ]
    wanted = {
        (port, frontend_of(name).protocol)
        for (name, slot), value in masters
        if not slot and (port := split_target(value)[1])
    }
    missing = sorted((port, protocol.name) for port, protocol in wanted if (port, protocol.number) not in waiting)
    if missing:
        yield Result(values={"ports": ", ".join(f"{port}/{name}" for port, name in missing)})
    elif wanted:
        yield Result(level=Level.OK)


CHECKS = (
    Check(
        "snat-ports-overlap",
        "`--snat-ports` beside the NodePorts and the ports of local sockets",
        snat_ports_overlap,
        "--snat-ports {ports} overlaps {range}: connections may be mixed up",
        "choose a range that does not overlap",
        good="SNAT ports {ports}: no overlap with NodePorts or local sockets",
        when=When.OFFLINE,
    ),
    Check(
        "sockets-not-served",
        "what `--socket-lb` needs: cgroup2, and a kernel that runs socket programs",
        sockets_not_served,
        "this kernel runs no programs for the sockets of a cgroup",
        "use --no-socket-lb, or a kernel with CONFIG_CGROUP_BPF",
        good="processes of this node in cgroup {path} reach Services by socket programs",
        when=When.OFFLINE,
        level=Level.ERROR,
    ),
    Check(
        "node-ports-not-local",
        "the NodePorts and HostPorts in the maps, without `--socket-lb`",
        node_ports_not_local,
        "NodePorts and HostPorts ({ports}) are served to other hosts and to pods; processes of this node itself do not reach them"
        " at its own addresses",
        "use --socket-lb; or use the ClusterIP of the Service, or the address of a backend, on the node itself",
        when=When.OFFLINE,
        level=Level.NOTE,
    ),
    Check(
        "proxy-missing",
        "sockets at the ports of L7 proxies in the maps (`lbagent.io/l7-proxy-port`)",
        proxies_missing,
        "no process waits at {ports}, where an L7 proxy should: its clients are refused",
        "start the proxy, with a listener at that port (HAProxy: `bind :PORT transparent`)",
        good="a process waits at each port of an L7 proxy",
        when=When.OFFLINE,
    ),
)
