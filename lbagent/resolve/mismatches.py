"""Why a port of a Service has no endpoints although there are slices: a name, a protocol or an IP family does not match. Pure.

A Service without any endpoint is valid; one with contradicting manifests is not, and both look alike in the maps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from lbagent.model.family import Family
from lbagent.model.message import Message
from lbagent.nearest_word import nearest
from lbagent.objects.records import EndpointSlice, Service, ServicePort, SlicePort

MAX_SHOWN_PORTS = 5  # ports of a slice in a message
CLOSE_PORT = 0.6  # port names are short, and few are compared
MAX_ORPHANS = 100  # slices without a Service that are compared with Services
SERVICE_NAME_FIELD = "metadata.labels.kubernetes.io/service-name"
NO_ENDPOINTS = "these frontends have no endpoints: connections are refused"


def port_problem(port: ServicePort, family: Family, slices: Iterable[EndpointSlice]) -> str:
    """Return why no slice of the family matches a port's name and protocol; '' when one does, or none has endpoints."""
    pieces = [piece for piece in slices if piece.family == family]
    if any(each.name == port.name and each.protocol is port.protocol for piece in pieces for each in piece.ports):
        return ""
    piece = next((piece for piece in pieces if piece.endpoints), None)
    if piece is None:
        return ""
    text = f"no EndpointSlice has the port {_port_text(port)}; {slice_text(piece)} has "
    if not piece.ports:
        return text + "endpoints and no ports"
    text += ", ".join(map(_port_text, piece.ports[:MAX_SHOWN_PORTS])) + ", …" * (len(piece.ports) > MAX_SHOWN_PORTS)
    probable = nearest(port.name, {each.name for each in piece.ports if each.protocol is port.protocol}, CLOSE_PORT)
    return f"{text}; did you mean {probable!r}?" if probable else text


def family_problem(service: Service, family: Family, slices: Iterable[EndpointSlice]) -> str:
    """Return why frontends of a family have no endpoints: the slices, written by hand, are all of the other family.

    In a cluster the controller makes slices for each family, so a missing one will follow.
    """
    pieces = [piece for piece in slices if piece.endpoints or piece.family == family]
    if not service.origin.file or not pieces or any(piece.family == family for piece in pieces):
        return ""
    return f"the Service has IPv{family} frontends; {slice_text(pieces[0])} has IPv{pieces[0].family} addresses"


def orphan_messages(
    orphans: Mapping[str, Sequence[EndpointSlice]], services: Mapping[str, Service], without_slices: Collection[str]
) -> list[Message]:
    """Return an error for each slice without its Service while a Service without slices has nearly its name.

    `orphans` are the slices of manifest files by the key of their Service; `without_slices` the keys of Services.
    """
    by_name: dict[str, list[str]] = {}
    by_namespace: dict[str, list[str]] = {}
    for key in sorted(without_slices):
        namespace, _, name = key.partition("/")
        by_name.setdefault(name, []).append(key)
        by_namespace.setdefault(namespace, []).append(name)
    out = []
    for key, pieces in sorted(orphans.items())[:MAX_ORPHANS]:
        namespace, _, name = key.partition("/")
        if (near := nearest(name, by_namespace.get(namespace, ()))) and _letters(near) != _letters(name):
            probable, field = f"{namespace}/{near}", ""
        elif name in by_name:
            probable, field = by_name[name][0], "metadata.namespace"
        else:
            continue
        other = services[probable]
        problem = (
            f"there is no Service {key}; did you mean Service {probable} ({other.origin.place}), which has no slice?"
        )
        for piece in pieces:
            kind, names = ("Endpoints", "metadata.name") if piece.legacy else ("EndpointSlice", SERVICE_NAME_FIELD)
            kept, origin = "its endpoints are not used", piece.origin
            out.append(Message(problem, kept, field or names, kind, piece.key, origin.file, origin.line))
    return out


def slice_text(piece: EndpointSlice) -> str:
    """Return the object that a slice was read from, with its place."""
    return f"{'Endpoints' if piece.legacy else 'EndpointSlice'} {piece.key} ({piece.origin.place})"


def _letters(name: str) -> str:
    """Return a name without its digits: db-2 is no misspelling of db-1."""
    return "".join(each for each in name if not each.isdigit())


def _port_text(port: ServicePort | SlicePort) -> str:
    return f"{port.name!r}/{port.protocol.name}"
