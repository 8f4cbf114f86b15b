"""Finds fields of a manifest whose name is a misspelling of a field that lbagent reads.

A field that Kubernetes or this version does not have is not an error by itself (version skew). It is one if the name of a field
is so similar that it must be a misspelling. Only manifest files are checked: an API server removes unknown fields itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from msgspec import Struct

from lbagent.nearest_word import nearest
from lbagent.objects.decode import wire
from lbagent.textfile.field_path import FieldPath

MAX_FOUND = 10  # misspelt fields of one object in messages
MAX_SEEN = 256  # sets of keys of one shape that are remembered


class MisspeltField(NamedTuple):
    """A misspelt field of an object: its path, the path of the probable field, and whether that one is given, too."""

    path: FieldPath
    probable: FieldPath
    is_given: bool


def misspelt_fields(raw: dict[str, Any], shape: type[Struct]) -> list[MisspeltField]:
    """Return the fields of a parsed object of this shape (wire.py) that are misspellings of fields that lbagent reads."""
    found: list[MisspeltField] = []
    if _has_known_fields(raw, _shape_of(shape)):
        return found
    for each in _walk(raw, _shape_of(shape), ()):
        found.append(each)
        if len(found) == MAX_FOUND:
            break
    return found


class _Shape(NamedTuple):
    """A mapping: the fields that lbagent reads, all fields of Kubernetes, and the shape of those that hold mappings."""

    read: frozenset[str]
    known: frozenset[str]
    inner: dict[str, type[Struct]]
    seen: dict[
        tuple[str, ...], tuple[tuple[str, _Shape], ...]
    ]  # keys of mappings that have only known fields, with their inner ones


def _has_known_fields(raw: dict[str, Any], shape: _Shape) -> bool:
    """Return whether all fields are known, at any depth: fast, as 100,000 endpoints have a few different sets of keys."""
    keys = tuple(raw)
    inner = shape.seen.get(keys)
    if inner is None:
        if not shape.known.issuperset(keys):
            return False
        inner = tuple((key, _shape_of(kind)) for key in keys if (kind := shape.inner.get(key)))
        if len(shape.seen) < MAX_SEEN:
            shape.seen[keys] = inner
    for key, of in inner:
        value = raw[key]
        if isinstance(value, dict):
            if not _has_known_fields(value, of):
                return False
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, dict) and not _has_known_fields(item, of):
                    return False
    return True


def _walk(raw: dict[str, Any], shape: _Shape, path: FieldPath) -> Iterator[MisspeltField]:
    if not shape.known.issuperset(raw):
        for key in raw.keys() - shape.known:
            if word := nearest(key, shape.read):
                yield MisspeltField((*path, key), (*path, word), word in raw)
    for field, kind in shape.inner.items():
        value = raw.get(field)
        if isinstance(value, dict):
            yield from _walk(value, _shape_of(kind), (*path, field))
        elif isinstance(value, list):
            inner = _shape_of(kind)
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _walk(item, inner, (*path, field, index))


# Fields of Kubernetes that lbagent does not read, by shape. Source: the Kubernetes API 1.36, and its betas.
NOT_READ: dict[type[Struct], str] = {
    wire.Meta: "clusterName deletionGracePeriodSeconds generateName generation managedFields ownerReferences"
    " resourceVersion selfLink",
    wire.Port: "appProtocol",
    wire.ServiceSpec: "allocateLoadBalancerNodePorts externalName ipFamily topologyKeys trafficDistribution",
    wire.Ingress: "hostname ports",
    wire.ServiceStatus: "conditions",
    wire.ObjectReference: "apiVersion fieldPath resourceVersion uid",
    wire.Endpoint: "deprecatedTopology hostname topology",
    wire.Address: "hostname",
    wire.NodeCondition: "lastHeartbeatTime lastTransitionTime reason status",
    wire.NodeStatus: "allocatable capacity config daemonEndpoints declaredFeatures features images nodeInfo phase"
    " runtimeHandlers volumesAttached volumesInUse",
    wire.Taint: "effect timeAdded value",
    wire.NodeSpec: "configSource externalID podCIDR podCIDRs podPreemptionPolicy providerID",
    wire.ContainerPort: "name",
    wire.Container: "args command env envFrom image imagePullPolicy lifecycle livenessProbe name readinessProbe"
    " resizePolicy resources restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath"
    " terminationMessagePolicy tty volumeDevices volumeMounts workingDir",
    wire.PodSpec: "activeDeadlineSeconds affinity automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks"
    " ephemeralContainers evictionResponders hostAliases hostIPC hostPID hostUsers hostname hostnameOverride"
    " imagePullSecrets nodeSelector os overhead preemptionPolicy priority priorityClassName readinessGates"
    " resourceClaims resources restartPolicy runtimeClassName schedulerName schedulingGates schedulingGroup"
    " securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain"
    " terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes workloadRef",
    wire.PodCondition: "lastProbeTime lastTransitionTime message observedGeneration reason",
    wire.PodStatus: "allocatedResources containerStatuses ephemeralContainerStatuses"
    " extendedResourceClaimStatus hostIP hostIPs initContainerStatuses message nodeAllocatableResourceClaimStatuses"
    " nominatedNodeName observedGeneration qosClass reason resize resourceClaimStatuses resources startTime"
    " volumeHealth",
    wire.ServiceCIDR: "status",
    wire.BackendState: "status",
    wire.LocalRedirectPolicy: "status",
}


def _inner_struct(hint: Any) -> type[Struct] | None:
    """Return the Struct in a field's type, alone or in a list."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint
    return next((found for each in get_args(hint) if (found := _inner_struct(each))), None)


@cache
def _shape_of(kind: type[Struct]) -> _Shape:
    hints = get_type_hints(kind)
    read = frozenset(hints)
    whole = ("apiVersion", "kind") if "metadata" in read else ()
    known = read.union(NOT_READ.get(kind, "").split(), whole)
    inner = {field: found for field, hint in hints.items() if (found := _inner_struct(hint))}
    return _Shape(read, known, inner, {})
