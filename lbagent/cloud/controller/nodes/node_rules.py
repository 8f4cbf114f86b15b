"""The patches of a Node that follow from the provider's data of its machine. Pure: JSON of a Node in, patches out.

Source: k8s.io/cloud-provider, controllers/node/node_controller.go and node/helpers/address.go (behaviour).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lbagent.cloud.provider_api.provider_parts import Addresses, InstanceMetadata
from lbagent.cloud.provider_api.provider_records import Node
from lbagent.objects.decode.decode_pod import SHUT_DOWN

Obj = dict[str, Any]
UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"  # a taint: its kubelet waits for a cloud controller
PROVIDED_IP = "alpha.kubernetes.io/provided-node-ip"  # an annotation: its kubelet's --node-ip
HOST_NAME = "HostName"
SHUT_DOWN_TAINT: Mapping[str, str] = {"key": SHUT_DOWN, "effect": "NoSchedule"}
_LABELS = {  # each with its older name, which is set too, and wins where the two differ
    "instance_type": ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"),
    "zone": ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    "region": ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
}
_KUBERNETES = re.compile(r"(^|\.)(kubernetes|k8s)\.io/")


def initialising_patch(raw: Obj, metadata: InstanceMetadata) -> Obj | None:
    """Return the patch that initialises a Node; None: it is initialised. An existing providerID stays."""
    spec = raw.get("spec", {})
    rest = [taint for taint in spec.get("taints") or () if taint["key"] != UNINITIALIZED]
    if len(rest) == len(spec.get("taints") or ()):
        return None
    changed: Obj = {"taints": rest or None}
    if not spec.get("providerID") and metadata.provider_id:
        changed["providerID"] = metadata.provider_id
    labels = wanted_labels(metadata, raw["metadata"].get("labels") or {})
    return {"spec": changed, "metadata": {"labels": labels}}


def wanted_labels(metadata: InstanceMetadata, there: Mapping[str, str]) -> dict[str, str]:
    """Return the labels to set. Additional ones in Kubernetes' namespaces are dropped, and none replaces an existing label."""
    found = {name: text for field, names in _LABELS.items() for name in names if (text := getattr(metadata, field))}
    more = {key: text for key, text in metadata.additional_labels if not _KUBERNETES.search(key) and key not in there}
    return more | found


def outdated_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of an initialised Node that differ from, or lack, the value of their older names."""
    return {new: labels[old] for new, old in _LABELS.values() if old in labels and labels.get(new) != labels[old]}


def wanted_addresses(node: Node, found: Addresses) -> Addresses:
    """Return the addresses of a Node; () if the provider has none: it keeps its own.

    Its HostName stays if the provider returns none. Raises ValueError if its kubelet was given an address that the machine
    does not have.
    """
    if not found:
        return ()
    if not any(kind == HOST_NAME for kind, _ in found):
        found += tuple(each for each in node.addresses if each[0] == HOST_NAME)
    provided = node.annotations.get(PROVIDED_IP)
    return found if provided is None else _preferring(provided, found)


def _preferring(provided: str, found: Addresses) -> Addresses:
    """Return the addresses, those given to the kubelet first; other addresses of the same type are left out."""
    first: list[tuple[str, str]] = []
    for text in provided.split(","):
        try:
            wanted = ipaddress.ip_address(text.strip())
        except ValueError:
            raise ValueError(f"annotation {PROVIDED_IP}: {text!r} is not an address") from None
        matching = [each for each in found if _ip(each[1]) == wanted]
        if not matching:
            raise ValueError(f"annotation {PROVIDED_IP}: the machine has no address {wanted}")
        first += matching
    types = {kind for kind, _ in first}
    return (*first, *(each for each in found if each[0] not in types))


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None  # a name


def addresses_patch(raw: Obj, wanted: Addresses) -> Obj | None:
    """Return the patch that sets these addresses; None: the Node has them. Their order matters: the first one is the Node's."""
    there = raw.get("status", {}).get("addresses") or ()
    if tuple((each["type"], each["address"]) for each in there) == wanted:
        return None
    return {"status": {"addresses": [{"type": kind, "address": text} for kind, text in wanted]}}


def shut_down_patch(raw: Obj, *, off: bool) -> Obj | None:
    """Return the patch that adds or removes the taint of a machine that is off; None: nothing to change, or the Node is ready."""
    if off and any(each["type"] == "Ready" and each["status"] == "True" for each in _conditions(raw)):
        return None  # it became ready after the call of the provider
    taints = raw.get("spec", {}).get("taints") or []
    rest = [taint for taint in taints if (taint["key"], taint["effect"]) != tuple(SHUT_DOWN_TAINT.values())]
    if off == (len(rest) < len(taints)):
        return None
    return {"spec": {"taints": [*taints, SHUT_DOWN_TAINT] if off else rest or None}}


def _conditions(raw: Obj) -> Sequence[Mapping[str, Any]]:
    return raw.get("status", {}).get("conditions") or ()
