"""Read Pods and Nodes: what HostPort frontends, weights and topology need of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from lbagent.model.address import L4Type, parse_ip
from lbagent.objects.decode import wire
from lbagent.objects.decode.decode_words import OF_PODS
from lbagent.objects.decode.last_good_parts import keep_families, keep_host_ports
from lbagent.objects.decode.report import Report, label, present
from lbagent.objects.decode.wire import Meta, PodSpec, PodStatus
from lbagent.objects.records import HostPort, Node, Pod
from lbagent.textfile.field_path import FieldPath

ZONE = "topology.kubernetes.io/zone"
EXCLUDED = "node.kubernetes.io/exclude-from-external-load-balancers"
TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"  # a taint
SHUT_DOWN = "node.cloudprovider.kubernetes.io/shutdown"  # a taint
SHUTTING_DOWN = "node is shutting down"  # the kubelet's message of its condition Ready then
MAX_ADDRESSES = 64
MAX_HOST_PORTS = 256


def decode_node(raw: wire.Node, _namespace: str, name: str, report: Report) -> Node:
    """Return the Node: its InternalIPs in order, its zone label, and whether it is about to be removed."""
    addresses: dict[bytes, None] = {}
    for index, entry in present(((raw.status.addresses if raw.status else None) or [])[:MAX_ADDRESSES]):
        if entry.type == "InternalIP":
            path = ("status", "addresses", index, "address")
            if address := report.address(path, entry.address, "the address is left out"):
                addresses[address] = None
    kept = keep_families(("status", "addresses"), list(addresses), report.last_value("internal_ips"), report)
    meta, taints = raw.metadata or Meta(), (raw.spec.taints if raw.spec else None) or ()
    keys = {taint.key for _, taint in present(taints)}
    return Node(
        name,
        report.origin,
        tuple(kept),
        label(meta, ZONE) or "",
        leaves=bool(meta.deletionTimestamp) or TO_BE_DELETED in keys,
        excluded=_is_excluded(meta),
        cordoned=bool(raw.spec and raw.spec.unschedulable),
        shuts_down=SHUT_DOWN in keys or _is_shutting_down(raw.status),
        ready=_is_ready(raw.status.conditions if raw.status else None),
        labels=MappingProxyType({str(key): label(meta, key) or "" for key in meta.labels or ()}),
    )


def _is_shutting_down(status: wire.NodeStatus | None) -> bool:
    conditions = present(status.conditions if status else None)
    return any(each.type == "Ready" and SHUTTING_DOWN in (each.message or "") for _, each in conditions)


def _is_ready(conditions: Sequence[wire.NodeCondition | wire.PodCondition | None] | None) -> bool:
    return any(each is not None and each.type == "Ready" and each.status == "True" for each in conditions or ())


def _is_excluded(meta: Meta) -> bool:
    """Return whether balancers leave a node out: it has the label, and its value does not mean false."""
    text = label(meta, EXCLUDED)
    return text is not None and not is_no(text)


def is_no(text: str) -> bool:
    """Return whether a label's value means false for Go's ParseBool; any other value counts as true."""
    return text in ("0", "f", "F", "false", "False", "FALSE")


def decode_pod(raw: wire.Pod, namespace: str, name: str, report: Report) -> Pod:
    """Return the Pod; a pod on the host's network has no hostPort frontends (its ports are the node's own)."""
    meta, spec, status = raw.metadata or Meta(), raw.spec or PodSpec(), raw.status or PodStatus()
    host_network = bool(spec.hostNetwork)
    report.check_annotations(meta, OF_PODS)
    return Pod(
        namespace,
        name,
        report.origin,
        report.timestamp(meta),
        node=spec.nodeName or "",
        ips=_pod_ips(status, report),
        host_ports=() if host_network else _host_ports(spec, report),
        terminating=bool(meta.deletionTimestamp),
        finished=status.phase in ("Succeeded", "Failed"),
        host_network=host_network,
        weight=report.weight(meta),
        ready=_is_ready(status.conditions),
        labels=MappingProxyType({str(key): label(meta, key) or "" for key in meta.labels or ()}),
    )


def _pod_ips(status: PodStatus, report: Report) -> tuple[bytes, ...]:
    found: dict[bytes, None] = {}
    texts: list[tuple[FieldPath, str | None]] = [
        (("status", "podIPs", index, "ip"), entry.ip) for index, entry in present((status.podIPs or [])[:MAX_ADDRESSES])
    ]
    for path, text in texts or [(("status", "podIP"), status.podIP)]:
        if text and (address := report.address(path, text, "the address is left out")):
            found[address] = None
    field = "podIPs" if texts else "podIP"
    return tuple(keep_families(("status", field), list(found), report.last_value("ips"), report))


def _host_ports(spec: PodSpec, report: Report) -> tuple[HostPort, ...]:
    found: list[HostPort] = []
    for field, containers in (("containers", spec.containers), ("initContainers", spec.initContainers)):
        for at, container in present(containers):
            if field == "initContainers" and container.restartPolicy != "Always":
                continue  # of the init containers, only sidecars run beside the containers
            for index, port in present(container.ports):
                if port.hostPort:
                    found += _host_port(port, ("spec", field, at, "ports", index), report)
    found = keep_host_ports(spec, found, report)
    if len(found) > MAX_HOST_PORTS:
        report.error(("spec", "containers"), f"more than {MAX_HOST_PORTS} hostPorts", "the rest is left out")
    return tuple(found[:MAX_HOST_PORTS])


def _host_port(raw: wire.ContainerPort, path: FieldPath, report: Report) -> list[HostPort]:
    kept = "the hostPort is left out"
    port = report.port((*path, "hostPort"), raw.hostPort, kept)
    target = report.port((*path, "containerPort"), raw.containerPort, kept)
    protocol: L4Type | None = report.protocol((*path, "protocol"), raw.protocol, kept)
    host_ip = None
    if raw.hostIP:
        try:
            host_ip = parse_ip(raw.hostIP.strip())
        except ValueError as error:
            report.error((*path, "hostIP"), str(error), kept)
            return []
    if not port or not target or protocol is None:
        return []
    return [HostPort(port, target, protocol, host_ip, path)]
