"""The last good values of an object's faulty parts, which a running agent keeps, and only those.

A part is identified by its name, else by its place in the list, except in a list that became shorter. A part that occurs
elsewhere in the new object is not kept twice. Source ranges are kept only if that admits no new client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from lbagent.model.address import format_ip
from lbagent.model.service import CIDR
from lbagent.objects.decode.report import Report
from lbagent.objects.records import Balancer, Endpoint, EndpointSlice, HostPort, ServicePort, SlicePort
from lbagent.textfile.field_path import FieldPath


def keep_ports(raw: Sequence[Any] | None, ports: list[ServicePort], report: Report) -> tuple[ServicePort, ...]:
    """Return the ports of a Service with their last good values in place of faulty ones."""
    path: FieldPath = ("spec", "ports")
    old: tuple[ServicePort, ...] = report.last_value("ports") if report.is_faulty(path) else ()
    if not old:
        return tuple(ports)
    if raw is None:
        report.say_kept(path, f"ports {', '.join(str(port.port) for port in old)}")
        return old
    now = {port.index: port for port in ports}
    names = {_name(entry, (*path, index), report) for index, entry in enumerate(raw)}
    for index, entry in enumerate(raw):
        at = (*path, index)
        if not report.is_faulty(at):
            continue
        name = _name(entry, at, report)
        same = [port for port in old if port.name == name and name]
        if not same and len(raw) >= len(old):
            same = [port for port in old if port.index == index and (not port.name or port.name not in names)]
        if same:
            _keep_port(same[0], index, now, report)
    return tuple(now[index] for index in sorted(now))


def _keep_port(last: ServicePort, index: int, now: dict[int, ServicePort], report: Report) -> None:
    taken = {(port.port, port.protocol) for port in now.values()}
    node_ports = {(port.node_port, port.protocol) for port in now.values() if port.node_port}
    mine = now.get(index)
    is_free = bool(last.node_port) and (last.node_port, last.protocol) not in node_ports
    if mine is not None:  # only its node port is wrong
        if is_free and mine.protocol is last.protocol and not mine.node_port:
            now[index] = replace(mine, node_port=last.node_port)
            report.say_kept(("spec", "ports", index, "nodePort"), f"node port {last.node_port}")
    elif (last.port, last.protocol) not in taken:
        now[index] = replace(last, index=index, node_port=last.node_port if is_free else 0)
        report.say_kept(("spec", "ports", index), f"port {last.port}")


def keep_balancer(balancer: Balancer, report: Report) -> Balancer:
    """Return the parts of a Service for its provider, with the last good ports, affinity and source ranges for faulty ones."""
    last: Balancer | None = report.last_value("balancer")
    if last is not None and report.is_faulty(("spec", "ports")):
        balancer = replace(balancer, ports=last.ports)
    if last is not None and report.is_faulty(("spec", "sessionAffinity")):
        balancer = replace(balancer, session_affinity=last.session_affinity)
    if last is not None and report.is_faulty(("spec", "loadBalancerSourceRanges")):
        balancer = replace(balancer, source_ranges=last.source_ranges)
    return balancer


def _name(entry: Any, path: FieldPath, report: Report) -> str:
    return (entry.name or "") if entry is not None else report.names_left_out.get(path, "")


def keep_families(path: FieldPath, found: list[bytes], old: Sequence[bytes] | None, report: Report) -> list[bytes]:
    """Return the addresses found and, if one of them is faulty, the last good ones of families that have none now."""
    if not old or not report.is_faulty(path):
        return found
    missing = [address for address in old if all(len(address) != len(other) for other in found)]
    if missing:
        report.say_kept(path, ", ".join(map(format_ip, missing)))
    return found + missing


def keep_addresses(
    path: FieldPath, raw: Sequence[Any] | None, found: list[bytes], old: Sequence[bytes] | None, report: Report
) -> list[bytes]:
    """Return the addresses found, with the last good ones in place of faulty ones."""
    if not old or not report.is_faulty(path):
        return found
    if raw is None:
        report.say_kept(path, ", ".join(map(format_ip, old)))
        return list(old)
    out = dict.fromkeys(found)
    for index in _faulty(path, raw, old, report):
        if old[index] not in out:
            out[old[index]] = None
            report.say_kept((*path, index), format_ip(old[index]))
    return list(out)


def keep_ranges(
    path: FieldPath, raw: Sequence[str | None] | None, found: dict[int, CIDR], report: Report, *, deny: bool
) -> tuple[CIDR, ...]:
    """Return the ranges, by place, and those last good ones that admit no additional client.

    A deny list keeps all its old ranges. An allow list keeps one only if nothing else of the list was edited: else its removal
    may be intended.
    """
    old: Sequence[CIDR] = (report.last_value("source_ranges") if report.is_faulty(path) else ()) or ()
    ranges = tuple(dict.fromkeys(found.values()))
    if not old or report.last_value("ranges_deny") is not deny:
        return ranges
    if raw is None or deny:
        kept = [cidr for cidr in old if cidr not in ranges]
    elif len(raw) == len(old) and all(old[index] == cidr for index, cidr in found.items()):
        kept = [cidr for index, cidr in enumerate(old) if index not in found]
    else:
        kept = []
    if kept:
        report.say_kept(path, ", ".join(map(str, kept)))
    return tuple(dict.fromkeys((*ranges, *kept)))


def keep_slice_ports(
    path: FieldPath,
    raw: Sequence[Any],
    ports: dict[int, SlicePort],
    last: Callable[[], Sequence[SlicePort] | None],
    report: Report,
) -> list[SlicePort]:
    """Return the ports of a slice or subset, by place, with the last good ones in place of faulty ones."""
    old = (last() if report.is_faulty(path) else ()) or ()
    names = {port.name for port in ports.values()}
    for index in range(len(raw)) if old else ():
        at = (*path, index)
        if not report.is_faulty(at):
            continue
        name = _name(raw[index], at, report)
        same = [port for port in old if port.name == name and (name or len(old) == 1)]
        same = same or [port for port in old[index : index + 1] if len(old) == len(raw) and port.name not in names]
        if same and same[0] not in ports.values():
            ports[index] = same[0]
            report.say_kept(at, f"port {same[0].port}")
    return [ports[index] for index in sorted(ports)]


def keep_endpoints(
    path: FieldPath,
    raw: Sequence[Any],
    found: dict[int, Endpoint],
    pods: dict[int, str],
    last: Callable[[], Sequence[Endpoint] | None],
    report: Report,
) -> list[Endpoint]:
    """Return the endpoints, by place, with the last good ones in place of faulty ones. `pods` names these."""
    old = (last() if report.is_faulty(path) else ()) or ()
    if not old:
        return list(found.values())
    by_pod = {endpoint.pod: endpoint for endpoint in old if endpoint.pod}
    taken = {endpoint.address for endpoint in found.values()}
    by_place = set(_faulty(path, raw, old, report))
    for index in range(len(raw)):
        if index in found or not report.is_faulty((*path, index)):
            continue
        pod = pods.get(index, "")
        before = by_pod.get(pod) if pod else old[index] if index in by_place else None
        if before is not None and before.address not in taken:
            taken.add(before.address)
            found[index] = before
            report.say_kept((*path, index), format_ip(before.address))
    return [found[index] for index in sorted(found)]


def old_slices(index: int, raw: Sequence[Any], report: Report) -> list[EndpointSlice]:
    """Return the last good slices of a faulty subset; none if its place does not identify it."""
    path: FieldPath = ("subsets", index)
    old: Sequence[EndpointSlice] = (report.last_value("slices") if report.is_faulty(path) else ()) or ()
    if old and len(raw) <= max(piece.subset for piece in old):
        return []
    return [piece for piece in old if piece.subset == index]


def keep_host_ports(spec: Any, found: list[HostPort], report: Report) -> list[HostPort]:
    """Return the hostPorts of a Pod with their last good values in place of faulty ones."""
    old: Sequence[HostPort] = (report.last_value("host_ports") if report.is_faulty(("spec",)) else ()) or ()
    taken = {(port.port, port.protocol, port.host_ip) for port in found}
    places = {port.place for port in found}
    kept = []
    for port in old:
        if port.place in places or (port.port, port.protocol, port.host_ip) in taken:
            continue
        if at := _faulty_around(spec, port.place, report):
            report.say_kept(at, f"hostPort {port.port}")
            kept.append(port)
    return sorted(found + kept, key=lambda port: port.place) if kept else found


def _faulty_around(spec: Any, place: FieldPath, report: Report) -> FieldPath:
    """Return the path of the fault that removed a place of a Pod's spec; () if it is there, or was removed without a fault."""
    here = spec
    for depth, step in enumerate(place[1:], 2):
        if isinstance(step, str):
            here = getattr(here, step)
        elif step < len(here):
            here = here[step]
        else:
            return ()
        if here is None:
            return place[:depth] if report.is_faulty(place[:depth]) else ()
    return place if report.is_faulty(place) else ()


def _faulty(path: FieldPath, raw: Sequence[Any], old: Sequence[Any], report: Report) -> list[int]:
    """Return the places with a last good value."""
    if len(raw) < len(old):
        return []
    return [index for index in range(len(old)) if report.is_faulty((*path, index))]
