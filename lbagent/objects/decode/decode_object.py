"""Decodes a Kubernetes object, a mapping or JSON, to a record. Has the kinds that are used, and the module that decodes each.

Sources call `decode_object`, or `decode_json` if the kind is known. These leave out what they cannot use and report it; they
raise nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from sys import intern
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from lbagent.decoding_errors import DECODING_ERRORS, decoding_problem
from lbagent.model.message import Message
from lbagent.nearest_word import nearest
from lbagent.objects.decode import wire
from lbagent.objects.decode.annotation_words import OURS
from lbagent.objects.decode.decode_backend_state import decode_backend_state
from lbagent.objects.decode.decode_local_redirect import decode_cilium_local_redirect, decode_local_redirect
from lbagent.objects.decode.decode_pod import decode_node, decode_pod
from lbagent.objects.decode.decode_service import decode_service
from lbagent.objects.decode.decode_service_cidr import decode_service_cidr
from lbagent.objects.decode.decode_slice import decode_endpoints, decode_slice
from lbagent.objects.decode.lenient_convert import convert_leniently
from lbagent.objects.decode.misspelling import misspelt_fields
from lbagent.objects.decode.report import Report
from lbagent.objects.records import KubeObject, LastGoodObject, Origin
from lbagent.textfile.field_path import FieldPath
from lbagent.value_errors import shown, wrong_type


class _Kind(NamedTuple):
    api: str  # an apiVersion; one that ends with a slash is a group, of which every version is read
    wire: type[Any]
    decode: Callable[[Any, str, str, Report], KubeObject | None]
    namespaced: bool


_CORE, _DISCOVERY, _NETWORKING, _OURS = "v1", "discovery.k8s.io/", "networking.k8s.io/", "lbagent.io/v1alpha1"
_CILIUM = "cilium.io/v2"
_KINDS: dict[str, _Kind] = {
    "Service": _Kind(_CORE, wire.Service, decode_service, True),
    "EndpointSlice": _Kind(_DISCOVERY, wire.EndpointSlice, decode_slice, True),
    "Endpoints": _Kind(_CORE, wire.Endpoints, decode_endpoints, True),
    "Node": _Kind(_CORE, wire.Node, decode_node, False),
    "Pod": _Kind(_CORE, wire.Pod, decode_pod, True),
    "ServiceCIDR": _Kind(_NETWORKING, wire.ServiceCIDR, decode_service_cidr, False),
    "BackendState": _Kind(_OURS, wire.BackendState, decode_backend_state, False),
    "LocalRedirectPolicy": _Kind(_OURS, wire.LocalRedirectPolicy, decode_local_redirect, True),
    "CiliumLocalRedirectPolicy": _Kind(_CILIUM, wire.LocalRedirectPolicy, decode_cilium_local_redirect, True),
}
MAX_NAME = 253  # characters of a Kubernetes name


class DecodedObject(NamedTuple):
    """The result of one object: the record (None: of a kind that is not used, or rejected) and its faults.

    `kept` names fields that have their last good value, with its generation; `last` is what stays of a rejected object.
    `is_unidentified`: the object has no usable name, so it may be any earlier one.
    """

    obj: KubeObject | None
    kind: str
    key: str = ""
    messages: tuple[Message, ...] = ()
    kept: Mapping[str, int] = MappingProxyType({})
    last: LastGoodObject | None = None
    is_unidentified: bool = False


def is_used(api_version: str, kind: str) -> bool:
    """Return whether objects of this kind are read; others are skipped."""
    known = _KINDS.get(kind)
    if known is None:
        return False
    return api_version.startswith(known.api) if known.api.endswith("/") else api_version == known.api


def decode_object(
    raw: dict[str, Any] | bytes,
    origin: Origin,
    locate: Callable[[FieldPath], int] | None = None,
    last: Callable[[str, str], LastGoodObject | None] = lambda _kind, _key: None,
) -> DecodedObject:
    """Decode one object of any kind, a parsed mapping (which may be changed) or JSON.

    `locate` finds the 1-based line of a field of this object; without it messages name the object's first line.
    `last` returns the last good form of an object by kind and key: faulty parts keep its values.
    """
    if isinstance(raw, bytes):
        try:
            raw = msgspec.json.decode(raw)
        except DECODING_ERRORS as error:
            return _unidentified(Report(origin, locate), (), f"not JSON: {decoding_problem(error)}")
        if not isinstance(raw, dict):
            return _unidentified(Report(origin, locate), (), wrong_type(raw, "object"))
    for field in ("apiVersion", "kind"):
        value = raw.get(field)
        if value is None or value == "":
            return _unidentified(Report(origin, locate), (field,), "it is missing")
        if not isinstance(value, str):
            return _unidentified(Report(origin, locate), (field,), wrong_type(value, "str"))
    if is_used(raw["apiVersion"], raw["kind"]):
        return _decode(raw["kind"], raw, origin, locate, last)
    if misspelt := _misspelt_kind(raw["apiVersion"], raw["kind"]):
        report = Report(origin, locate)
        report.error(*misspelt, "the object is left out")
        return DecodedObject(None, raw["kind"], messages=tuple(report.messages))
    if not raw["apiVersion"].startswith(OURS):
        return DecodedObject(None, raw["kind"])
    kind, version = (text if text.isprintable() else ascii(text) for text in (raw["kind"], raw["apiVersion"]))
    problem = f"{kind} of {version} is not acted on by this version"
    message = Message(problem, "it is passed over", "kind", file=origin.file, line=origin.line, warning=True)
    return DecodedObject(None, raw["kind"], messages=(message,))


def _misspelt_kind(api_version: str, kind: str) -> tuple[FieldPath, str] | None:
    """Return the field and its fault, if kind or apiVersion is a misspelling of one that is used."""
    group = api_version.rpartition("/")[0]
    if kind in _KINDS:
        wanted = _KINDS[kind].api
        wanted_group = wanted.rpartition("/")[0]
        if (
            (group in _GROUPS and group != wanted_group)
            or nearest(group, (wanted_group,))
            or not api_version[:1].islower()
        ):
            text = wanted if not wanted.endswith("/") else f"{wanted}v1"
            return ("apiVersion",), f"{shown(api_version)} has no {kind}; did you mean {text}?"
        return None
    used = [word for word, known in _KINDS.items() if known.api.rpartition("/")[0] == group]
    if group not in _GROUPS or kind in _KINDS_NOT_USED or not (word := nearest(kind, used)):
        return None
    return ("kind",), f"unknown kind {shown(kind)} of {shown(api_version)}; did you mean {word}?"


_GROUPS = frozenset(known.api.rpartition("/")[0] for known in _KINDS.values())  # '' is the core group
# Kinds of these groups that lbagent does not use. Source: the Kubernetes API 1.36.
_KINDS_NOT_USED = frozenset(
    (
        "Binding",
        "ComponentStatus",
        "ConfigMap",
        "Event",
        "LimitRange",
        "Namespace",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "PodTemplate",
        "ReplicationController",
        "ResourceQuota",
        "Secret",
        "ServiceAccount",
        "Ingress",
        "IngressClass",
        "IPAddress",
        "NetworkPolicy",
    )
)


def decode_json(
    kind: str,
    raw: msgspec.Raw | bytes,
    origin: Origin,
    last: Callable[[str, str], LastGoodObject | None] = lambda _kind, _key: None,
) -> DecodedObject:
    """Decode the JSON of an object of a used kind, which may omit its kind, as objects in lists of the API do.

    Faster than `decode_object`, with the same result: only an object with values of a wrong type becomes a mapping first.
    """
    try:
        try:
            converted = _decoder(kind).decode(raw)
        except msgspec.ValidationError:
            mapping = msgspec.json.decode(raw)
            if isinstance(mapping, dict):
                return _decode(kind, mapping, origin, None, last)
            return _unidentified(Report(origin), (), wrong_type(mapping, "object"))
    except DECODING_ERRORS as error:
        return _unidentified(Report(origin), (), f"not JSON: {decoding_problem(error)}")
    meta = converted.metadata or wire.Meta()
    return _decode(kind, {"metadata": {"name": meta.name, "namespace": meta.namespace}}, origin, None, last, converted)


@cache
def _decoder(kind: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_KINDS[kind].wire)


def _unidentified(report: Report, path: FieldPath, problem: str) -> DecodedObject:
    report.error(path, problem, "the document is left out")
    return DecodedObject(None, "", messages=tuple(report.messages), is_unidentified=True)


def _decode(
    kind: str,
    raw: dict[str, Any],
    origin: Origin,
    locate: Callable[[FieldPath], int] | None,
    last: Callable[[str, str], LastGoodObject | None],
    converted: Any = None,
) -> DecodedObject:
    """Decode an object of a used kind; `converted` is the same in Kubernetes' shape, if it is known."""
    known = _KINDS[kind]
    namespace, name = _names(raw, known.namespaced)
    namespace = intern(namespace) if type(namespace) is str else namespace  # one string object for 10,000 objects
    key = f"{namespace}/{name}" if known.namespaced else name
    report = Report(origin, locate, lambda: last(kind, key), kind=kind, key=key)
    for field, text in (("name", name), ("namespace", namespace if known.namespaced else "-")):
        if problem := _bad_name(text, raw, field):
            report.key = ""
            report.error(("metadata", field), problem, "the object is left out")
            return DecodedObject(None, kind, "", tuple(report.messages), is_unidentified=True)
    if converted is None:
        for each in misspelt_fields(raw, known.wire) if origin.file else ():
            report.misspelt(each)
        converted = convert_leniently(raw, known.wire, report.wrong_type)
    if converted is not None and not (report.wrong_type_fields & _WHOLE and report.last):
        obj = known.decode(converted, namespace, name, report)
        if obj is not None or not report.messages:
            return DecodedObject(obj, kind, key, tuple(report.messages), report.kept)
    if report.last is None:
        return DecodedObject(None, kind, key, tuple(report.messages))
    stays = f"kept the object of generation {report.last.generation}"
    return DecodedObject(
        None, kind, key, tuple(replace(each, kept=stays) for each in report.messages), last=report.last
    )


# If one of these is faulty, the rest may have another meaning: the whole object stays as it was.
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


def _bad_name(name: str, raw: dict[str, Any], field: str) -> str:
    """Return the fault of a name, '' for none.

    Kubernetes checks the rest; here it must only be printable, and short enough to store a hundred thousand.
    """
    if not name:
        meta = raw.get("metadata")
        given = meta.get(field) if isinstance(meta, dict) else None
        return f"the {field} is missing" if given is None or given == "" else wrong_type(given, "str")
    if len(name) > MAX_NAME:
        return f"longer than {MAX_NAME} characters"
    return "" if name.isprintable() else "not printable"


def _names(raw: dict[str, Any], namespaced: bool) -> tuple[str, str]:
    """Return namespace and name as strings; YAML may make a number of a bare name."""
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
