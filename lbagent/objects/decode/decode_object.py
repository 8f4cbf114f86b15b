"""From a parsed manifest or API object to one of our objects: which kinds we use, and who reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from lbagent.objects.decode import wire
from lbagent.objects.decode.decode_other import decode_backend_state, decode_node, decode_pod
from lbagent.objects.decode.decode_service import decode_service
from lbagent.objects.decode.decode_slice import decode_endpoints, decode_slice
from lbagent.objects.decode.report import Report
from lbagent.objects.decode.wire import FieldPath
from lbagent.objects.records import KubeObject, LastGoodObject, Message, Origin


class _Kind(NamedTuple):
    wire: type[Any]
    read: Callable[[Any, str, str, Report], KubeObject | None]
    namespaced: bool


_CORE, _DISCOVERY, _OURS = "v1", "discovery.k8s.io/", "lbagent.io/v1alpha1"
_KINDS: dict[str, tuple[str, _Kind]] = {
    "Service": (_CORE, _Kind(wire.Service, decode_service, True)),
    "EndpointSlice": (_DISCOVERY, _Kind(wire.EndpointSlice, decode_slice, True)),
    "Endpoints": (_CORE, _Kind(wire.Endpoints, decode_endpoints, True)),
    "Node": (_CORE, _Kind(wire.Node, decode_node, False)),
    "Pod": (_CORE, _Kind(wire.Pod, decode_pod, True)),
    "BackendState": (_OURS, _Kind(wire.BackendState, decode_backend_state, False)),
}
MAX_NAME = 253  # characters of a Kubernetes name


class DecodedObject(NamedTuple):
    """What one object gave: the object (None: not used, or refused) and what is wrong with it.

    `kept` names fields that have their last good value, with its generation; `last` is what stays of a refused object.
    `key` '' means that nobody can say which object it is.
    """

    obj: KubeObject | None
    kind: str
    key: str = ""
    messages: tuple[Message, ...] = ()
    kept: Mapping[str, int] = MappingProxyType({})
    last: LastGoodObject | None = None


def is_used(api_version: object, kind: object) -> bool:
    """Return whether objects of this kind are read; others are passed over."""
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    if known is None or not isinstance(api_version, str):
        return False
    wanted = known[0]
    return api_version.startswith(wanted) if wanted.endswith("/") else api_version == wanted


def decode_object(
    raw: dict[str, Any],
    origin: Origin,
    locate: Callable[[FieldPath], int] | None = None,
    last: Callable[[str, str], LastGoodObject | None] = lambda _kind, _key: None,
) -> DecodedObject:
    """Read one parsed object of a kind that `is_used`; `raw` may be changed.

    `locate` finds the 1-based line of a field of this object; without it messages name the object's first line.
    `last` finds the last good form of an object by kind and key: what is faulty now keeps its value.
    """
    kind = raw["kind"]
    _, known = _KINDS[kind]
    namespace, name = _names(raw, known.namespaced)
    subject = f"{kind} {namespace}/{name}" if known.namespaced else f"{kind} {name}"
    key = f"{namespace}/{name}" if known.namespaced else name
    report = Report(origin, subject, locate, lambda: last(kind, key))
    for field, text in (("name", name), ("namespace", namespace if known.namespaced else "-")):
        if problem := _bad_name(text):
            report.subject = kind
            report.error(("metadata", field), problem, "the object is left out")
            return DecodedObject(None, kind, "", tuple(report.messages))
    converted = wire.convert(raw, known.wire, report.wrong_type)
    if converted is not None and not (report.wrong_type_fields & _WHOLE and report.last):
        obj = known.read(converted, namespace, name, report)
        if obj is not None or not report.messages:
            return DecodedObject(obj, kind, key, tuple(report.messages), report.kept)
    if report.last is None:
        return DecodedObject(None, kind, key, tuple(report.messages))
    stays = f"kept the object of generation {report.last.generation}"
    return DecodedObject(
        None, kind, key, tuple(replace(each, kept=stays) for each in report.messages), last=report.last
    )


# Without one of these the rest means something else: the whole object stays as it was.
_WHOLE: set[FieldPath] = {
    ("metadata",),
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("spec",),
    ("spec", "type"),
    ("spec", "nodeName"),
    ("status",),
    ("status", "loadBalancer"),
    ("status", "loadBalancer", "ingress"),
    ("ports",),
    ("endpoints",),
    ("subsets",),
}


def _bad_name(name: str) -> str:
    """Return what is wrong with a name, '' for nothing. Kubernetes checks the rest; we must print it, and hold many."""
    if not name:
        return "the name is missing, or no text"
    if len(name) > MAX_NAME:
        return f"longer than {MAX_NAME} characters"
    return "" if name.isprintable() else "not printable"


def _names(raw: dict[str, Any], namespaced: bool) -> tuple[str, str]:
    """Return namespace and name as texts; YAML may make a number of a bare name."""
    meta = raw.get("metadata")
    if not isinstance(meta, dict):
        return "default", ""
    for field in ("name", "namespace"):
        if isinstance(meta.get(field), int) and not isinstance(meta[field], bool):
            meta[field] = str(meta[field])
    name, namespace = meta.get("name"), meta.get("namespace")
    return (
        ("default" if namespace in (None, "") else namespace if isinstance(namespace, str) else "")
        if namespaced
        else "",
        name if isinstance(name, str) else "",
    )
