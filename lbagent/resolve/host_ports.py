"""HostPort frontends: from the Pods of this node. A Service beats a HostPort; of two running Pods the older has the frontend.

A terminating Pod's backend is terminating, so that a new Pod on the same hostPort takes the new flows and the old one
keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import DEFAULT_BACKEND_WEIGHT, Backend, BackendState
from lbagent.model.exclusion import exclusion_of
from lbagent.model.family import Family
from lbagent.model.flags import ServiceFlags, SvcFlagParam
from lbagent.model.message import Message
from lbagent.model.select import EndpointInfo, EndpointSet, endpoint_state, select
from lbagent.model.service import SVC, ServiceName, SVCType
from lbagent.objects.records import HostPort, Pod
from lbagent.resolve.build_context import BuildContext
from lbagent.resolve.frontends import UNSPECIFIED, is_loopback, node_addresses


class HostPortFrontends(NamedTuple):
    """The SVCs of each Pod by its key, and the problems."""

    frontends: dict[str, tuple[SVC, ...]]
    messages: list[tuple[str, Message]]  # (Pod key, message)


class _HostPortCandidate(NamedTuple):
    pod: Pod
    backend: L3n4Addr
    surrogate: bool
    loopback: bool


def is_relevant(pod: Pod, node_name: str) -> bool:
    """Return whether a Pod can have HostPort frontends on this node."""
    return bool(pod.host_ports) and not pod.finished and not pod.host_network and pod.node == node_name != ""


def host_port_frontends(
    pods: Iterable[Pod], context: BuildContext, owner: Callable[[L3n4Addr], str | None]
) -> HostPortFrontends:
    """Return the SVCs of the relevant Pods. `owner` returns the Service that has a frontend, if there is one."""
    result = HostPortFrontends({}, [])
    claims: dict[L3n4Addr, list[_HostPortCandidate]] = {}
    for pod in sorted(pods, key=_seniority):
        for port in pod.host_ports:
            for frontend, claim in _claims(pod, port, context):
                if exclusion_of(frontend, context.node.exclusions):
                    continue
                claims.setdefault(frontend, []).append(claim)
    frontends: dict[str, list[SVC]] = {}
    reported: set[tuple[str, int]] = set()
    for frontend, rivals in claims.items():
        service = owner(frontend)
        holder = rivals[0].pod
        losers = rivals if service else [claim for claim in rivals[1:] if _is_rival(claim, holder)]
        for claim in losers:
            if (claim.pod.key, frontend.port) not in reported:
                reported.add((claim.pod.key, frontend.port))
                result.messages.append((claim.pod.key, _lost(claim.pod, frontend, service, holder)))
        if not service:
            winners = [claim for claim in rivals if claim not in losers]
            frontends.setdefault(holder.key, []).append(_frontend(frontend, winners, context))
    result.frontends.update((key, tuple(found)) for key, found in frontends.items())
    return result


def _seniority(pod: Pod) -> tuple[bool, bool, float, str, str]:
    return (pod.terminating, not pod.created, pod.created, pod.namespace, pod.name)


def _is_rival(claim: _HostPortCandidate, holder: Pod) -> bool:
    return not claim.pod.terminating and claim.pod.key != holder.key


def _claims(pod: Pod, port: HostPort, context: BuildContext) -> Iterable[tuple[L3n4Addr, _HostPortCandidate]]:
    backends = {Family.of(ip): L3n4Addr(ip, port.target_port, port.protocol) for ip in reversed(pod.ips)}
    families = tuple(sorted(backends))
    if port.host_ip is not None and port.host_ip not in UNSPECIFIED.values():
        family = Family.of(port.host_ip)
        if family in backends:
            frontend = L3n4Addr(port.host_ip, port.port, port.protocol)
            yield frontend, _HostPortCandidate(pod, backends[family], False, is_loopback(port.host_ip))
        return
    if port.host_ip is not None:
        families = tuple(family for family in families if family == Family.of(port.host_ip))
    for address, surrogate in node_addresses(families, context.node.addresses):
        frontend = L3n4Addr(address, port.port, port.protocol)
        yield frontend, _HostPortCandidate(pod, backends[Family.of(address)], surrogate, False)


def _frontend(frontend: L3n4Addr, claims: list[_HostPortCandidate], context: BuildContext) -> SVC:
    picked = select([_info(claim, context) for claim in claims], with_local=False)
    first = claims[0]
    flags = ServiceFlags.from_param(
        SvcFlagParam(
            SVCType.HOST_PORT,
            is_routable=not first.surrogate and not first.loopback,
            loopback_hostport=first.loopback,
            two_scopes=False,
        )
    )
    groups = _groups(picked.cluster, context)
    name = ServiceName(first.pod.namespace, first.pod.name)
    return SVC(
        frontend,
        name=name,
        type=SVCType.HOST_PORT,
        selectable=groups[0],
        unselectable=groups[1],
        slotless=groups[2],
        flags=flags,
        loopback_hostport=first.loopback,
        created=first.pod.created,
    )


def _info(claim: _HostPortCandidate, context: BuildContext) -> EndpointInfo:
    pod, ready = claim.pod, not claim.pod.terminating
    weight = DEFAULT_BACKEND_WEIGHT if pod.weight is None else pod.weight
    override = context.overrides.state_of(claim.backend, pod.key)
    return EndpointInfo(
        claim.backend,
        ready=ready,
        terminating=not ready,
        node_name=pod.node,
        zone=context.node.zone,
        weight=weight,
        override=override,
    )


def _groups(chosen: EndpointSet, context: BuildContext) -> list[tuple[Backend, ...]]:
    return [
        tuple(_backend(info, state, context) for info in group if (state := endpoint_state(info)) is not None)
        for group in (chosen.selectable, chosen.unselectable, chosen.slotless)
    ]


def _backend(info: EndpointInfo, state: BackendState, context: BuildContext) -> Backend:
    node_name, local = context.node_of(info)
    return Backend(0, info.address, state, weight=info.weight, node_name=node_name, zone=info.zone, local=local)


def _lost(pod: Pod, frontend: L3n4Addr, service: str | None, holder: Pod) -> Message:
    if service:
        who = f"held by Service {service}"
    elif pod.created != holder.created:  # one without a time counts as the youngest
        who = f"held by the older Pod {holder.key}"
    else:
        who = f"held by Pod {holder.key}, which is of the same age and the first by namespace/name"
    problem = f"{frontend.with_protocol()} is {who}"
    kept, field, origin = "the other frontends stay", "spec.containers.ports.hostPort", pod.origin
    return Message(problem, kept, field, "Pod", pod.key, origin.file, origin.line, bool(service))
