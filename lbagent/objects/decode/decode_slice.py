"""Read EndpointSlices and Endpoints: check each part, keep the rest. Source: kube-proxy's endpointslicecache.go (behaviour)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from sys import intern

from lbagent.model.family import Family
from lbagent.nearest_word import nearest
from lbagent.objects.decode import wire
from lbagent.objects.decode.decode_service import HEADLESS, PROXY_NAME
from lbagent.objects.decode.decode_words import OF_SLICES, decode_tier
from lbagent.objects.decode.last_good_parts import keep_endpoints, keep_slice_ports, old_slices
from lbagent.objects.decode.report import Report, label, plain_ip, present
from lbagent.objects.decode.wire import Address, Conditions, Hints, Meta, ObjectReference, Port, Subset
from lbagent.objects.records import Endpoint, Endpoints, EndpointSlice, SlicePort
from lbagent.textfile.field_path import FieldPath
from lbagent.value_errors import wrong_type

SERVICE_NAME = "kubernetes.io/service-name"
MAX_ENDPOINTS = 65535  # slots are counted in 16 bits; Kubernetes allows 1000 in a slice, Endpoints any number
MAX_PORTS = 1000
MAX_HINTS = 64
_FAMILIES = {"IPv4": Family.IPV4, "IPv6": Family.IPV6}
OldSlices = Callable[[], list[EndpointSlice]]


def decode_slice(raw: wire.EndpointSlice, namespace: str, name: str, report: Report) -> EndpointSlice | None:
    """Return the slice; None if it belongs to no Service of this proxy, or its addressType is not an IP family."""
    meta = raw.metadata or Meta()
    if isinstance(named := (meta.labels or {}).get(SERVICE_NAME), list | dict):
        report.error(("metadata", "labels", SERVICE_NAME), wrong_type(named, "str"), "the slice is left out")
        return None
    service = label(meta, SERVICE_NAME)
    if raw.addressType == "FQDN" or _is_for_others(meta):
        return None
    if not service:
        _report_no_service(meta, report)
        return None
    family = _FAMILIES.get(raw.addressType or "")
    if family is None:
        what = f"unknown value {raw.addressType!r}" if raw.addressType else "it is missing"
        report.error(("addressType",), f"{what}; one of IPv4, IPv6, FQDN is possible", "the slice is left out")
        return None
    ports = _slice_ports(raw.ports, ("ports",), lambda: report.last_value("ports"), report)
    found: dict[int, Endpoint] = {}
    for index, entry in present(raw.endpoints):
        if index >= MAX_ENDPOINTS:
            report.error(("endpoints",), f"more than {MAX_ENDPOINTS} endpoints", "the rest is left out")
            break
        if endpoint := _endpoint(entry, namespace, family, index, report):
            found[index] = endpoint
    endpoints = _kept(
        ("endpoints",), raw.endpoints or (), found, namespace, lambda: report.last_value("endpoints"), report
    )
    report.check_annotations(meta, OF_SLICES)
    weight, tier = report.weight(meta), decode_tier(meta, report)
    return EndpointSlice(namespace, name, service, family, report.origin, ports, tuple(endpoints), weight, tier)


def _report_no_service(meta: Meta, report: Report) -> None:
    """Report a slice of a file that names no Service; in a cluster other controllers may have slices of their own."""
    if not report.origin.file:
        return
    kept, name = "the slice belongs to no Service and is left out", SERVICE_NAME.partition("/")[2]
    for field, words in (("labels", meta.labels), ("annotations", meta.annotations)):
        for key in words or ():
            word = key.partition("/")[2] or key if isinstance(key, str) else ""
            if nearest(key, (SERVICE_NAME,)) or word == name or nearest(word, (name,)):
                if key != SERVICE_NAME:
                    report.error(("metadata", field, key), f"unknown; did you mean the label {SERVICE_NAME}?", kept)
                elif field == "annotations":
                    report.error(("metadata", field, key), "it must be a label", kept)
                else:
                    report.error(("metadata", field, key), "it is empty", kept)
                return
    report.error(("metadata", "labels"), f"there is no label {SERVICE_NAME}", kept)


def _is_for_others(meta: Meta) -> bool:
    """Return whether by its labels no proxy, or another one, serves these endpoints: kube-proxy's selector."""
    return any(label(meta, key) is not None for key in (HEADLESS, PROXY_NAME))


def _kept(
    path: FieldPath,
    raw: Sequence[wire.Endpoint | Address | None],
    found: dict[int, Endpoint],
    namespace: str,
    last: Callable[[], Sequence[Endpoint] | None],
    report: Report,
) -> list[Endpoint]:
    if len(found) == len(raw):
        return list(found.values())
    faulty = [(index, entry) for index, entry in enumerate(raw) if index not in found]
    pods = {index: _pod(entry.targetRef, namespace) for index, entry in faulty if entry is not None}
    return keep_endpoints(path, raw, found, pods, last, report)


def _slice_ports(
    raw: list[Port | None] | None, path: FieldPath, last: Callable[[], Sequence[SlicePort] | None], report: Report
) -> tuple[SlicePort, ...]:
    ports: dict[int, SlicePort] = {}
    for index, entry in present(raw):
        if index >= MAX_PORTS:
            report.error(path, f"more than {MAX_PORTS} ports", "the rest is left out")
            break
        if not entry.port:  # nil and 0: every port, or none yet; a service proxy uses neither
            continue
        port = report.port((*path, index, "port"), entry.port, "the port is left out")
        protocol = report.protocol((*path, index, "protocol"), entry.protocol, "the port is left out")
        if port and protocol:
            ports[index] = SlicePort(intern(entry.name or ""), protocol, port)
    return tuple(keep_slice_ports(path, raw or (), ports, last, report))


def _endpoint(raw: wire.Endpoint, namespace: str, family: Family, index: int, report: Report) -> Endpoint | None:
    """Return an endpoint; only addresses[0] counts (by contract of the API the others belong to the same pod)."""
    kept = "the endpoint is left out"
    if not raw.addresses or not raw.addresses[0]:
        report.error(("endpoints", index, "addresses"), "there is no address", kept)
        return None
    address = plain_ip(raw.addresses[0]) or report.address(("endpoints", index, "addresses", 0), raw.addresses[0], kept)
    if address is None:
        return None
    if len(address) != family.address_bytes:
        problem = f"{raw.addresses[0]} is not IPv{family} as addressType says"
        report.error(("endpoints", index, "addresses", 0), problem, kept)
        return None
    ready, serving, terminating = _conditions(raw.conditions)
    zones, nodes = _hints(raw.hints)
    return Endpoint(
        address,
        ready=ready,
        serving=serving,
        terminating=terminating,
        node=intern(raw.nodeName or ""),
        zone=intern(raw.zone or ""),
        pod=_pod(raw.targetRef, namespace),
        for_zones=zones,
        for_nodes=nodes,
    )


def _conditions(raw: Conditions | None) -> tuple[bool, bool, bool]:
    """Return (ready, serving, terminating): nil means ready, serving, not terminating, as in kube-proxy."""
    if raw is None:
        return True, True, False
    return raw.ready is not False, raw.serving is not False, raw.terminating is True


def _hints(raw: Hints | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if raw is None:
        return (), ()
    zones = tuple(intern(entry.name) for _, entry in present((raw.forZones or [])[:MAX_HINTS]) if entry.name)
    nodes = tuple(intern(entry.name) for _, entry in present((raw.forNodes or [])[:MAX_HINTS]) if entry.name)
    return zones, nodes


def _pod(raw: ObjectReference | None, namespace: str) -> str:
    if raw is None or raw.kind != "Pod" or not raw.name:
        return ""
    return f"{raw.namespace or namespace}/{raw.name}"


def decode_endpoints(raw: wire.Endpoints, namespace: str, name: str, report: Report) -> Endpoints | None:
    """Return the Endpoints as slices, one for each subset and family; None if its labels exclude this proxy."""
    if _is_for_others(raw.metadata or Meta()):
        return None
    slices: list[EndpointSlice] = []
    subsets = raw.subsets or ()
    for index, subset in enumerate(subsets):
        if subset is not None:
            slices += _subset(subset, namespace, name, index, partial(old_slices, index, subsets, report), report)
        elif old := old_slices(index, subsets, report):
            report.say_kept(("subsets", index), f"{sum(len(piece.endpoints) for piece in old)} endpoints")
            slices += old
    return Endpoints(namespace, name, report.origin, tuple(slices))


def _subset(raw: Subset, namespace: str, name: str, number: int, old: OldSlices, report: Report) -> list[EndpointSlice]:
    path: FieldPath = ("subsets", number)
    ports = _slice_ports(raw.ports, (*path, "ports"), lambda: next((piece.ports for piece in old()), ()), report)
    found = [
        *_addresses(raw.addresses, namespace, True, (*path, "addresses"), old, report),
        *_addresses(raw.notReadyAddresses, namespace, False, (*path, "notReadyAddresses"), old, report),
    ]
    return [
        EndpointSlice(namespace, name, name, family, report.origin, ports, endpoints, legacy=True, subset=number)
        for family in Family
        if (endpoints := tuple(each for each in found if Family.of(each.address) == family))
    ]


def _addresses(
    raw: list[Address | None] | None, namespace: str, ready: bool, path: FieldPath, old: OldSlices, report: Report
) -> list[Endpoint]:
    entries = (raw or [])[:MAX_ENDPOINTS]
    found: dict[int, Endpoint] = {}
    for index, entry in present(entries):
        if endpoint := _address(entry, namespace, ready, (*path, index), report):
            found[index] = endpoint

    def last() -> list[Endpoint]:
        return [each for piece in old() for each in piece.endpoints if each.ready is ready]

    return _kept(path, entries, found, namespace, last, report)


def _address(raw: Address, namespace: str, ready: bool, path: FieldPath, report: Report) -> Endpoint | None:
    address = report.address((*path, "ip"), raw.ip, "the endpoint is left out")
    if address is None:
        return None
    return Endpoint(address, ready, ready, node=intern(raw.nodeName or ""), pod=_pod(raw.targetRef, namespace))
