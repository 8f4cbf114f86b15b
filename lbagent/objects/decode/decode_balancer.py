"""Read the parts of a Service for its load balancer's provider. The provider reports faults of these, by an Event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lbagent.model.address import parse_ip
from lbagent.model.family import Family
from lbagent.objects.decode import wire
from lbagent.objects.decode.report import present
from lbagent.objects.decode.wire import Meta, ServiceSpec
from lbagent.objects.records import Balancer, BalancerPort

CLEANUP = "service.kubernetes.io/load-balancer-cleanup"  # finalizer; source: k8s.io/cloud-provider service/helpers
ROUTER_TYPE, ROUTER_IGD = (
    "midokura.com/load-balancer-type",
    "upnp-igd",
)  # requests a router's port mappings (cloud/edge)
_FAMILIES = {"IPv4": Family.IPV4, "IPv6": Family.IPV6}


def has_finalizer(meta: Meta) -> bool:
    """Return whether a balancer may still have to be removed."""
    return bool(meta.finalizers) and CLEANUP in (meta.finalizers or ())


def is_behind_router(meta: Meta) -> bool:
    """Return whether a Service requests port mappings of a router: its clients use its node ports."""
    return any((found or {}).get(ROUTER_TYPE) == ROUTER_IGD for found in (meta.annotations, meta.labels))


def decode_balancer(raw: wire.Service, kind: str) -> Balancer:
    """Return the parts of a Service of a type for the provider; a part that cannot be read counts as missing."""
    meta, spec = raw.metadata or Meta(), raw.spec or ServiceSpec()
    selector = _texts(spec.selector)
    return Balancer(
        wanted=kind == "LoadBalancer" and not meta.deletionTimestamp,
        finalizer=has_finalizer(meta),
        load_balancer_class=spec.loadBalancerClass or "",
        load_balancer_ip=spec.loadBalancerIP or "",
        families=_families(spec),
        require_dual_stack=spec.ipFamilyPolicy == "RequireDualStack",
        annotations=_texts(meta.annotations),
        labels=_texts(meta.labels),
        pods=",".join(f"{key}={selector[key]}" for key in sorted(selector)),
        uid=meta.uid or "",
        status=_status(raw),
        ports=tuple(_port(port) for _, port in present(spec.ports)),
        session_affinity=spec.sessionAffinity or "None",
        publish_not_ready=spec.publishNotReadyAddresses is True,
        source_ranges=tuple(text or "" for text in spec.loadBalancerSourceRanges or ()),
    )


def _port(port: wire.Port) -> BalancerPort:
    target = port.targetPort if isinstance(port.targetPort, int | str) else 0
    return BalancerPort(port.name or "", port.protocol or "TCP", port.port or 0, port.nodePort or 0, target)


def _texts(given: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return the entries that are strings."""
    return {key: text for key, text in (given or {}).items() if isinstance(key, str) and isinstance(text, str)}


def _families(spec: ServiceSpec) -> tuple[Family, ...]:
    """Return the families in order: those of ipFamilies, else those of the ClusterIPs, else IPv4."""
    named = dict.fromkeys(_FAMILIES[word] for _, word in present(spec.ipFamilies) if word in _FAMILIES)
    texts = [text for _, text in present(spec.clusterIPs)] or [spec.clusterIP or ""]
    return tuple(named) or tuple(dict.fromkeys(map(Family.of, _addresses(texts)))) or (Family.IPV4,)


def _status(raw: wire.Service) -> tuple[bytes, ...]:
    status = raw.status.loadBalancer if raw.status else None
    texts = [entry.ip or "" for _, entry in present(status.ingress if status else None)]
    return tuple(dict.fromkeys(_addresses(texts)))


def _addresses(texts: list[str]) -> list[bytes]:
    found = []
    for text in texts:
        try:
            found.append(parse_ip(text))
        except ValueError:
            continue
    return found
