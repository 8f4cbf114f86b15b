"""Read a v1 Service: check each part, keep the rest. Source: Kubernetes API v1, kube-proxy's serviceport.go (behaviour)."""

from __future__ import annotations

from sys import intern

from lbagent.model.address import L4Type
from lbagent.model.family import Family
from lbagent.model.service import CIDR, DEFAULT_AFFINITY_TIMEOUT_S
from lbagent.objects.decode import wire
from lbagent.objects.decode.decode_annotations import decode_annotations, decode_l7_port
from lbagent.objects.decode.decode_balancer import decode_balancer, has_finalizer, is_behind_router
from lbagent.objects.decode.decode_flow_rules import decode_flow_rules
from lbagent.objects.decode.decode_health_check import decode_health_check
from lbagent.objects.decode.decode_port_ranges import decode_port_ranges
from lbagent.objects.decode.decode_words import decode_exclude, decode_ranges_for, decode_stale_flows, decode_tier_min
from lbagent.objects.decode.last_good_parts import (
    keep_addresses,
    keep_balancer,
    keep_families,
    keep_ports,
    keep_ranges,
)
from lbagent.objects.decode.report import Report, annotation, label, present, text_of
from lbagent.objects.decode.source_ranges import ANNOTATION, MAX_RANGES, read_source_ranges
from lbagent.objects.decode.wire import Ingress, Meta, ServiceSpec
from lbagent.objects.records import Service, ServicePort
from lbagent.textfile.field_path import FieldPath

MAX_PORTS = 1000
MAX_ADDRESSES = 1000  # externalIPs, ingress addresses
MAX_AFFINITY_S = 86400  # Kubernetes' own limit
PROXY_NAME = "service.kubernetes.io/service-proxy-name"
HEADLESS = "service.kubernetes.io/headless"

_TYPES = {word: word for word in ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")}
_POLICIES = {"Cluster": False, "Local": True}
_AFFINITY = {"None": False, "ClientIP": True}
_FAMILIES = {"IPv4": Family.IPV4, "IPv6": Family.IPV6}
_NO_RANGES: tuple[tuple[CIDR, ...], bool, bool] = ((), False, False)
_RANGES = {"allow": False, "deny": True}


def decode_service(raw: wire.Service, namespace: str, name: str, report: Report) -> Service:
    """Return the Service; faults go to the report."""
    meta, spec = raw.metadata or Meta(), raw.spec or ServiceSpec()
    kind = report.choice(("spec", "type"), spec.type, _TYPES, "ClusterIP", "type")
    balancer = decode_balancer(raw, kind) if kind == "LoadBalancer" or has_finalizer(meta) else None
    base = Service(
        namespace, name, report.origin, report.timestamp(meta), _ignored(meta, spec, kind), kind, balancer=balancer
    )
    if base.ignored:
        return base
    cluster_ips = _cluster_ips(spec, report)
    outside = _addresses(spec.externalIPs, ("spec", "externalIPs"), report)
    outside = keep_addresses(
        ("spec", "externalIPs"), spec.externalIPs, outside, report.last_value("external_ips"), report
    )
    ingress = _ingress(raw, report) if kind == "LoadBalancer" else []
    families = _families(spec, cluster_ips, [*outside, *ingress], report)
    external = _of_families(outside, families, ("spec", "externalIPs"), report)
    vips = _of_families(ingress, families, ("status", "loadBalancer", "ingress"), report)
    algorithm, dsr, nat = decode_annotations(meta, report)
    rules = decode_flow_rules(meta, algorithm, report)
    timeout = _affinity(spec, report)
    l7_port = decode_l7_port(meta, report, affinity=timeout > 0, rules=rules)
    all_ranges = decode_ranges_for(meta, report)
    ranges, given, deny = _NO_RANGES
    if kind == "LoadBalancer" or all_ranges:
        ranges, given, deny = _source_ranges(meta, spec, (*vips, *external) if all_ranges else vips, report)
    ports = _ports(spec, kind, report)
    local = _policy("externalTrafficPolicy", spec.externalTrafficPolicy, "external_local", report)
    return Service(
        namespace,
        name,
        report.origin,
        base.created,
        type=kind,
        families=families,
        cluster_ips=tuple(cluster_ips),
        external_ips=external,
        ingress=vips,
        ports=ports,
        port_ranges=decode_port_ranges(meta, ports, report),
        external_local=local,
        internal_local=_policy("internalTrafficPolicy", spec.internalTrafficPolicy, "internal_local", report),
        affinity_timeout_s=timeout,
        source_ranges=ranges,
        ranges_given=given,
        ranges_deny=deny,
        node_port_ranges=given and is_behind_router(meta),
        all_ranges=all_ranges,
        excluded=decode_exclude(meta, report),
        health_check=decode_health_check(meta, report),
        health_check_node_port=_health_port(spec, report) if local and kind == "LoadBalancer" else 0,
        algorithm=algorithm,
        tier_min=decode_tier_min(meta, report),
        stale_flows_s=decode_stale_flows(meta, report),
        flow_rules=None if rules.is_empty else rules,
        dsr=dsr,
        nat_policy=nat,
        l7_proxy_port=l7_port,
        balancer=balancer and keep_balancer(balancer, report),
    )


def _health_port(spec: ServiceSpec, report: Report) -> int:
    """Return healthCheckNodePort, 0 for none."""
    if not spec.healthCheckNodePort:
        return 0
    path: FieldPath = ("spec", "healthCheckNodePort")
    port = report.port(path, spec.healthCheckNodePort, "it is ignored")
    if not port and (port := report.last_value("health_check_node_port") or 0):
        report.say_kept(path, str(port))
    return port


def _policy(name: str, text: str | None, field: str, report: Report) -> bool:
    return report.choice(("spec", name), text, _POLICIES, "Cluster", field)


def _ignored(meta: Meta, spec: ServiceSpec, kind: str) -> str:
    if kind == "ExternalName":
        return "ExternalName"
    if (proxy := label(meta, PROXY_NAME)) is not None:
        return f"service-proxy-name {proxy}"
    if spec.clusterIP == "None" or "None" in (spec.clusterIPs or ()) or label(meta, HEADLESS) is not None:
        return "headless"
    return ""


def _cluster_ips(spec: ServiceSpec, report: Report) -> list[bytes]:
    found: list[bytes] = []
    if any(spec.clusterIPs or ()):
        found = _addresses(spec.clusterIPs, ("spec", "clusterIPs"), report)
    elif spec.clusterIP:
        address = report.address(("spec", "clusterIP"), spec.clusterIP, "the ClusterIP frontends are left out")
        found = [address] if address else []
    for field in ("clusterIPs", "clusterIP"):
        found = keep_families(("spec", field), found, report.last_value("cluster_ips"), report)
    return found


def _addresses(texts: list[str | None] | None, path: FieldPath, report: Report, *field: str) -> list[bytes]:
    found: dict[bytes, None] = {}
    for index, text in present(texts):
        if index >= MAX_ADDRESSES:
            report.error(path, f"more than {MAX_ADDRESSES} addresses", "the rest is left out")
            break
        if text and (address := report.address((*path, index, *field), text, "the address is left out")):
            found[address] = None
    return list(found)


def _ingress(raw: wire.Service, report: Report) -> list[bytes]:
    """Return the addresses whose ipMode is VIP. Source: KEP-1860: with Proxy, packets go out to the balancer."""
    status = raw.status.loadBalancer if raw.status else None
    path = ("status", "loadBalancer", "ingress")
    entries = status.ingress if status else None
    mine: list[str | None] = [None] * len(entries or ())  # by place
    for index, entry in present(entries):
        if _is_vip(entry, (*path, index, "ipMode"), report):
            mine[index] = entry.ip
    found = _addresses(mine, path, report, "ip")
    return keep_addresses(path, None if entries is None else mine, found, report.last_value("ingress"), report)


def _is_vip(entry: Ingress, path: FieldPath, report: Report) -> bool:
    if entry.ipMode in (None, "", "VIP"):
        return True
    if entry.ipMode != "Proxy":
        report.error(path, f"unknown value {entry.ipMode!r}; one of VIP, Proxy is possible", "the address is left out")
    return False


def _families(spec: ServiceSpec, cluster_ips: list[bytes], others: list[bytes], report: Report) -> tuple[Family, ...]:
    named = []
    for index, word in present(spec.ipFamilies):
        if word in _FAMILIES:
            named.append(_FAMILIES[word])
        else:
            report.error(
                ("spec", "ipFamilies", index), f"unknown value {word!r}; one of IPv4, IPv6 is possible", "it is ignored"
            )
    if report.is_faulty(("spec", "ipFamilies")) and (last := report.last_value("families")):
        report.say_kept(("spec", "ipFamilies"), ", ".join(f"IPv{family}" for family in last))
        named += last
    found = {*named, *map(Family.of, cluster_ips)} or set(map(Family.of, others))
    return tuple(sorted(found or {Family.IPV4}))


def _of_families(
    addresses: list[bytes], families: tuple[Family, ...], path: FieldPath, report: Report
) -> tuple[bytes, ...]:
    fit = tuple(address for address in addresses if Family.of(address) in families)
    if len(fit) != len(addresses):
        report.warn(path, "the Service has no such IP family", "the addresses of that family have no frontend")
    return fit


def _ports(spec: ServiceSpec, kind: str, report: Report) -> tuple[ServicePort, ...]:
    ports: list[ServicePort] = []
    taken: set[tuple[int, L4Type]] = set()
    node_ports: set[tuple[int, L4Type]] = set()
    for index, raw in present(spec.ports):
        path: FieldPath = ("spec", "ports", index)
        if index >= MAX_PORTS:
            report.error(("spec", "ports"), f"more than {MAX_PORTS} ports", "the rest is left out")
            break
        port = report.port((*path, "port"), raw.port, "the port is left out")
        protocol = report.protocol((*path, "protocol"), raw.protocol, "the port is left out")
        if not port or protocol is None:
            continue
        if (port, protocol) in taken:
            report.error((*path, "port"), f"{port}/{protocol.value} is given twice", "the first one is used")
            continue
        taken.add((port, protocol))
        node_port = 0
        if raw.nodePort and kind in ("NodePort", "LoadBalancer"):
            node_port = report.port((*path, "nodePort"), raw.nodePort, "the NodePort frontends are left out")
            if node_port and (node_port, protocol) in node_ports:
                report.error(
                    (*path, "nodePort"), f"{node_port}/{protocol.value} is given twice", "the first one is used"
                )
                node_port = 0
            node_ports.add((node_port, protocol))
        ports.append(ServicePort(intern(raw.name or ""), protocol, port, node_port, index))
    return keep_ports(spec.ports, ports, report)


def _affinity(spec: ServiceSpec, report: Report) -> int:
    """Return the affinity time-out in seconds, 0 without affinity. `None` takes precedence over a left-over config."""
    path: FieldPath = ("spec", "sessionAffinity")
    wanted = report.choice(path, spec.sessionAffinity, _AFFINITY, "None", "has_affinity")
    if not wanted:
        return 0
    last: int = report.last_value("affinity_timeout_s") or 0
    path = ("spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds")
    client = spec.sessionAffinityConfig.clientIP if spec.sessionAffinityConfig else None
    timeout = client.timeoutSeconds if client else None
    if timeout is not None:
        if 1 <= timeout <= MAX_AFFINITY_S:
            return timeout
        report.error(path, f"{timeout} is not in 1-{MAX_AFFINITY_S}", f"{DEFAULT_AFFINITY_TIMEOUT_S} is used")
    for faulty in (path, path[:3], path[:2]):
        if last and report.is_faulty(faulty):
            report.say_kept(faulty, str(last))
            return last
    return DEFAULT_AFFINITY_TIMEOUT_S


def _source_ranges(
    meta: Meta, spec: ServiceSpec, vips: tuple[bytes, ...], report: Report
) -> tuple[tuple[CIDR, ...], bool, bool]:
    """Return the ranges, whether there is a list, and whether it excludes clients (deny)."""
    path: FieldPath = ("spec", "loadBalancerSourceRanges")
    note = "" if report.is_faulty(path) else text_of((meta.annotations or {}).get(ANNOTATION))
    read = read_source_ranges(spec.loadBalancerSourceRanges or (), note)
    if read.of_annotation:
        path = ("metadata", "annotations", ANNOTATION)
    for index, problem in read.refused.items():
        report.error(path if read.of_annotation else (*path, index), problem, "the range is left out")
    if read.is_cut:
        report.error(path, f"more than {MAX_RANGES} ranges", "the rest is left out")
    found = annotation(meta, "source-ranges-policy", "src-ranges-policy")
    deny = report.choice(found[0], found[1].lower(), _RANGES, "allow", "ranges_deny") if found else False
    given = bool(read.texts) or report.is_faulty(path)  # a value that is no list lets no client in
    raw = spec.loadBalancerSourceRanges if not read.of_annotation else read.texts
    ranges = keep_ranges(path, raw, read.by_place, report, deny=deny)
    for family in {Family.of(vip) for vip in vips} if given and not deny else ():
        if not any(Family.of(cidr.network) == family for cidr in ranges):
            report.warn(
                path, f"no range is IPv{family}", f"no client reaches the IPv{family} addresses of the balancer"
            )
    return ranges, given, deny
