"""Whether every backend can be reached: there is a route, its device is up and accepts frames, its next hop answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from lbagent.model.address import format_ip
from lbagent.model.check import Check, Result, Severity
from lbagent.net.paths import Hop, gateways
from lbagent.targets.bpf.backends import each_backend
from lbagent.targets.bpf.checks.running_context import RunningContext

# Time for a neighbour to answer its first request, and for a pod's endpoint to follow its device: two polls of the agent.
GRACE_S = 2.5


def next_hop_unresolved(context: RunningContext) -> Iterable[Hop]:
    """Return the next hops that backends need and that have no neighbour entry with a MAC address, gateways first."""
    network = context.network
    unresolved = sorted(context.plane.follower.finder.hops - network.neighbours.keys())
    behind = frozenset(gateways(network)) if unresolved else frozenset()
    unresolved.sort(key=lambda hop: hop not in behind)
    return unresolved


def _next_hops(context: RunningContext, hops: Sequence[Hop]) -> Iterator[Result]:
    """A gateway is the node's; any other next hop is an endpoint of a Service."""
    network = context.network
    behind = frozenset(gateways(network)) if hops else frozenset()
    for hop in hops:
        index, address = hop
        link = network.links.get(index)
        values = {"address": format_ip(address), "device": link.name if link else f"device {index}"}
        severity = Severity.FAULT if hop in behind else None
        yield Result("{address} {device}".format_map(values), values, severity=severity)


def path_unusable(context: RunningContext) -> Iterable[tuple[bytes, str]]:
    """Return the backends to which this node has no usable route, and why."""
    unusable = context.plane.follower.finder.unusable
    # the finder may hold answers for removed backends
    backends = {b.address.address for b in each_backend(context.plane.state)} if unusable else set()
    return sorted((address, why) for address, why in unusable.items() if address in backends)


def _paths(context: RunningContext, found: Sequence[tuple[bytes, str]]) -> Iterator[Result]:
    """A device that is down is the node's; any other problem is of an endpoint."""
    for address, why in found:
        route = context.network.route(address)
        link = context.network.links.get(route.ifindex) if route else None
        severity = Severity.FAULT if link is not None and not link.up else None
        text = format_ip(address)
        yield Result(text, {"address": text, "why": why}, severity=severity)


def neighbours_not_kept(context: RunningContext) -> Iterator[Result]:
    """Report more next hops than are kept resolved, and a full neighbour table of the kernel."""
    for subject, text, remedy in context.plane.follower.keeper.problems():
        yield Result(subject, text=text, remedy=remedy)


def frames_not_taken(context: RunningContext) -> Iterator[Result]:
    """Report the devices that rejected a frame of XDP in the last minute."""
    for name, problem in context.plane.follower.frames_not_taken(time.monotonic()).items():
        yield Result(name, {"problem": problem})


CHECKS = (
    Check(
        "next-hop-unresolved",
        "whether the next hops of backends answer",
        next_hop_unresolved,
        "next hop {address} on {device} does not answer: backends behind it get no packets",
        "is that host up, and the link to it? `ip neigh show {address}`",
        severity=Severity.DEGRADED,
        for_s=GRACE_S,
        describe=_next_hops,
        more="{count} more next hops do not answer",
    ),
    Check(
        "path-unusable",
        "whether each backend has a usable route",
        path_unusable,
        "backend {address} cannot be reached: {why}",
        "see `ip route get {address}`; add the route, or take the backend out of its slice",
        severity=Severity.DEGRADED,
        for_s=GRACE_S,
        describe=_paths,
        more="{count} more backends cannot be reached",
    ),
    Check(
        "neighbours-not-kept",
        "whether next hops are kept resolved",
        neighbours_not_kept,
    ),
    Check(
        "frames-not-taken",
        "whether devices take the frames that XDP sends",
        frames_not_taken,
        "{problem}",
        "a device that refuses frames is sent to by tc from now on; a full queue needs less traffic, or more queues",
    ),
)
