"""The rules of docs/ a second time, naively and from raw manifests: an oracle for `plan`. Nothing of lbagent is used.

`reference` gives lines without ids, one an entry: `ADDR LBALG AFF COUNT+QCOUNT FLAGS -> backends in slot order`, `BE ADDR STATE`,
`AFF ADDR BACKEND`, `SRC ADDR CIDR`, `MAGLEV ADDR backends`, `WILD ADDR`.
"""

from __future__ import annotations

from collections import defaultdict
from ipaddress import ip_address, ip_network

ZONE = "topology.kubernetes.io/zone"
OF_OTHERS = ("service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless")
RANK = {"ClusterIP": 0, "NodePort": 0, "LoadBalancer": 1, "ExternalIPs": 2}  # which claim to a frontend comes first
ALIVE = ("active", "terminating", "quarantined", "maintenance")


def host(ip):
    return f"[{ip}]" if ":" in ip else ip


def text(ip, port, protocol):
    return f"{host(ip)}:{port}/{protocol}"


def family(ip):
    return ip_address(ip).version


def by_number(backend):
    ip, _, rest = backend["at"].rpartition(":")
    ip = ip_address(ip.strip("[]"))
    return ip.version, int(ip), int(rest.partition("/")[0])


def port_key(port):
    return port.get("name", ""), port.get("protocol", "TCP")


def in_namespace(obj, name):
    return obj["metadata"].get("namespace", "default"), name


class Reference:
    """One folder, seen from one node."""

    def __init__(self, objects, node, node_ips=()):
        self.kinds = defaultdict(list)
        for obj in objects:
            self.kinds[obj["kind"]].append(obj)
        mine = next((each for each in self.kinds["Node"] if each["metadata"]["name"] == node), None)
        self.node = node
        self.zone = mine["metadata"].get("labels", {}).get(ZONE) if mine else None
        listed = mine["status"]["addresses"] if mine else []
        self.addresses = list(node_ips) or [each["address"] for each in listed if each["type"] == "InternalIP"]
        self.words = {}
        for each in self.kinds["BackendState"]:
            if each["spec"].get("node", node) == node:
                self.words.setdefault(each["spec"]["address"], each["spec"]["state"])
        self.lines = set()
        self.states = defaultdict(set)
        self.refused = False

    # --- who serves ---

    def endpoints(self, service, port, of_family):
        """The endpoints of a port: of duplicates the ready one, then the serving, then the local."""
        best = {}
        for each in self._all_endpoints(service, port, of_family):
            known = best.setdefault(each["at"], each)
            if rank(each) > rank(known):
                best[each["at"]] = each
        found = sorted(best.values(), key=by_number)
        for each in found:
            each["state"] = self._state(each)
        return found

    def _state(self, each):
        if each["ready"]:
            return "maintenance" if each["weight"] == 0 else self.words.get(each["at"], "active")
        return "terminating" if each["terminating"] else None

    def _all_endpoints(self, service, port, of_family):
        key = in_namespace(service, service["metadata"]["name"])
        slices = [
            each
            for each in self.kinds["EndpointSlice"]
            if in_namespace(each, each["metadata"]["labels"].get("kubernetes.io/service-name")) == key
        ]
        for piece in slices:
            if piece["addressType"] == f"IPv{of_family}":
                for each in piece["ports"]:
                    if port_key(each) == port_key(port):
                        for endpoint in piece["endpoints"]:
                            yield self._endpoint(piece, each, endpoint)
        if slices:
            return
        for each in self.kinds["Endpoints"]:
            if in_namespace(each, each["metadata"]["name"]) == key:
                for subset in each["subsets"]:
                    yield from self._of_subset(subset, port, of_family)

    def _endpoint(self, piece, port, endpoint):
        conditions, hints = endpoint.get("conditions", {}), endpoint.get("hints", {})
        weight = piece["metadata"].get("annotations", {}).get("lbagent.io/weight", 100)
        for pod in self.kinds["Pod"]:
            if endpoint.get("targetRef", {}).get("name") == pod["metadata"]["name"]:
                weight = pod["metadata"].get("annotations", {}).get("lbagent.io/weight", weight)
        return {
            "at": text(endpoint["addresses"][0], port["port"], port_key(port)[1]),
            "ready": conditions.get("ready", True),
            "serving": conditions.get("serving", True),
            "terminating": conditions.get("terminating", False),
            "local": endpoint.get("nodeName") == self.node,
            "weight": int(weight),
            "tier": int(piece["metadata"].get("annotations", {}).get("lbagent.io/tier", 0)),
            "zones": [each["name"] for each in hints.get("forZones", [])],
            "nodes": [each["name"] for each in hints.get("forNodes", [])],
        }

    def _of_subset(self, subset, port, of_family):
        for each in subset["ports"]:
            for field, ready in (("addresses", True), ("notReadyAddresses", False)):
                for address in subset.get(field, []) if port_key(each) == port_key(port) else []:
                    if family(address["ip"]) == of_family:
                        yield {
                            "at": text(address["ip"], each["port"], port_key(each)[1]),
                            "ready": ready,
                            "serving": ready,
                            "terminating": False,
                            "local": address.get("nodeName") == self.node,
                            "weight": 100,
                            "tier": 0,
                            "zones": [],
                            "nodes": [],
                        }

    def near(self, endpoints):
        """Leave out endpoints with hints for other nodes: only if every active endpoint has one, and one is for this node."""
        active = [each for each in endpoints if each["state"] == "active"]
        for field, here in (("nodes", self.node), ("zones", self.zone)):
            if here and active and all(each[field] for each in active) and any(here in each[field] for each in active):
                return [each for each in endpoints if here in each[field] or not (each["ready"] or each[field])]
        return endpoints

    def arrange(self, endpoints, tier_min):
        """Return (COUNT group, QCOUNT group, those without a slot)."""
        chosen = [each for each in endpoints if each["state"] == "active"] or [
            each
            for each in endpoints
            if each["state"] == "terminating"
            and each["serving"]
            and each["weight"]
            and self.words.get(each["at"], "active") == "active"
        ]
        for tier in range(8):
            of_tier = [each for each in endpoints if each["tier"] == tier]
            need = -(-len(of_tier) * int(tier_min[:-1]) // 100) if tier_min.endswith("%") else int(tier_min)
            usable = [each for each in of_tier if each in chosen]
            if usable and len(usable) >= need:
                chosen = [each for each in chosen if each["tier"] <= tier]
                break
        stale = [each for each in endpoints if "/UDP" in each["at"] and not (each["ready"] or each["serving"])]
        rest = [each for each in endpoints if each not in chosen and not (chosen and each in stale)]
        going = [each for each in rest if each["state"] == "terminating"]
        others = [
            *(each for each in going if each["serving"]),
            *(each for each in going if not each["serving"]),
            *(each for each in rest if each["state"] == "quarantined"),
        ]
        return chosen, others, [each for each in rest if each["state"] == "maintenance"]

    def _does_not_match(self, service, port, of_family):
        """Whether there are endpoints, but none for this port: the names, or the families, do not match."""
        pieces = list(self._pieces(service))
        mine = [(ports, count) for at, ports, count in pieces if at == of_family]
        if any(port_key(port) == port_key(each) for ports, _ in mine for each in ports):
            return False
        return any(count for _, count in mine) if mine else any(count for _, _, count in pieces)

    def _pieces(self, service):
        """(family, ports, how many endpoints) of each slice, or of each family of a subset where there is no slice."""
        key = in_namespace(service, service["metadata"]["name"])
        slices = [
            each
            for each in self.kinds["EndpointSlice"]
            if in_namespace(each, each["metadata"]["labels"].get("kubernetes.io/service-name")) == key
        ]
        for each in slices:
            yield int(each["addressType"][-1]), each["ports"], len(each["endpoints"])
        for each in self.kinds["Endpoints"] if not slices else ():
            if in_namespace(each, each["metadata"]["name"]) == key:
                for subset in each["subsets"]:
                    found = [*subset.get("addresses", []), *subset.get("notReadyAddresses", [])]
                    for at in (4, 6):
                        if count := sum(family(address["ip"]) == at for address in found):
                            yield at, subset["ports"], count

    # --- frontends ---

    def run(self):
        """Return (lines, whether something was refused)."""
        taken = {}
        served = sorted(filter(is_served, self.kinds["Service"]), key=age)
        for rank in sorted(set(RANK.values())):
            for service in served:
                for kind, ip, number, port in self._wanted(service):
                    if RANK[kind] == rank:
                        protocol = port_key(port)[1] if port else "ANY"
                        taken.setdefault((ip, number, protocol), in_namespace(service, service["metadata"]["name"]))
        for service in served:
            name = in_namespace(service, service["metadata"]["name"])
            for kind, ip, number, port in self._wanted(service):
                protocol = port_key(port)[1] if port else "ANY"
                holder = taken[ip, number, protocol]
                if port is None:
                    self.lines.add(f"WILD {host(ip)}")
                elif holder != name:
                    self.refused = True
                elif (ip, number, protocol, "done") not in taken:
                    taken[ip, number, protocol, "done"] = name
                    self.refused |= self._does_not_match(service, port, family(ip))
                    self._frontend(service, kind, ip, number, port)
        for backend, states in self.states.items():
            self.lines.add(f"BE {backend} {min(states, key=ALIVE.index)}")
        return self.lines, self.refused

    def _wanted(self, service):
        spec, kind = service["spec"], service["spec"].get("type", "ClusterIP")
        families = {int(each[-1]) for each in spec["ipFamilies"]}
        cluster_ips = [ip for ip in spec.get("clusterIPs", []) if ip]
        for ip in cluster_ips:
            yield "ClusterIP", ip, 0, None
            yield from (("ClusterIP", ip, port["port"], port) for port in spec["ports"])
        for each in sorted(families) if kind in ("NodePort", "LoadBalancer") else ():
            for ip in ("0.0.0.0" if each == 4 else "::", *(ip for ip in self.addresses if family(ip) == each)):
                yield from (("NodePort", ip, port["nodePort"], port) for port in spec["ports"] if "nodePort" in port)
        ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", []) if kind == "LoadBalancer" else []
        vips = [each["ip"] for each in ingress if "ip" in each and each.get("ipMode", "VIP") == "VIP"]
        for word, ips in (("LoadBalancer", vips), ("ExternalIPs", spec.get("externalIPs", []))):
            for ip in ips:
                if family(ip) in families:
                    yield from ((word, ip, port["port"], port) for port in spec["ports"])

    def _frontend(self, service, kind, ip, number, port):
        spec = service["spec"]
        endpoints = self.endpoints(service, port, family(ip))
        tier_min = service["metadata"].get("annotations", {}).get("lbagent.io/tier-min", "1")
        cluster = self.arrange(self.near(endpoints), tier_min)
        local = self.arrange([each for each in endpoints if each["local"]], tier_min)
        if kind == "ClusterIP":
            sets = [("", local if spec.get("internalTrafficPolicy") == "Local" else cluster)]
        else:
            outside = local if spec.get("externalTrafficPolicy") == "Local" else cluster
            sets = [("", outside), ("/i", cluster)] if outside[:2] != cluster[:2] else [("", outside)]
        for scope, groups in sets:
            self._row(service, kind, text(ip, number, port_key(port)[1]) + scope, groups, len(sets) > 1)

    def _row(self, service, kind, frontend, groups, two_scopes):
        spec, notes = service["spec"], service["metadata"].get("annotations", {})
        chosen, others, resting = groups
        affinity = spec.get("sessionAffinity") == "ClientIP"
        given = spec.get("sessionAffinityConfig", {}).get("clientIP", {}).get("timeoutSeconds", 10800)
        algorithm = notes.get("lbagent.io/algorithm", "random")
        routable = kind != "ClusterIP" and not frontend.startswith(("0.0.0.0:", "[::]:"))
        restricted = ["LoadBalancer"]
        if notes.get("lbagent.io/source-ranges-for") == "all":
            restricted += ["NodePort", "ExternalIPs"]
        ranges = spec.get("loadBalancerSourceRanges", []) if kind in restricted else []
        words = [
            (True, kind),
            (spec.get("externalTrafficPolicy") == "Local", "Local"),
            (spec.get("internalTrafficPolicy") == "Local", "InternalLocal"),
            (two_scopes, "two-scopes"),
            (affinity, "sessionAffinity"),
            (not routable, "non-routable"),
            (ranges, "check source-range"),
            (ranges and notes.get("lbagent.io/source-ranges-policy") == "deny", "deny"),
            (routable and notes.get("lbagent.io/forwarding-mode") == "dsr", "dsr"),
        ]
        slots = " ".join(each["at"] for each in (*chosen, *others))
        counts = f"{given if affinity else 0} {len(chosen)}+{len(others)}"
        self.lines.add(
            f"{frontend} {algorithm} {counts} {'+'.join(word for wanted, word in words if wanted)} -> {slots}"
        )
        for each in (*chosen, *others, *resting):
            self.states[each["at"]].add(each["state"])
        if affinity:
            self.lines |= {f"AFF {frontend} {each['at']}" for each in chosen}
        if algorithm == "maglev" and chosen:
            self.lines.add(f"MAGLEV {frontend} {' '.join(sorted(each['at'] for each in chosen))}")
        networks = [ip_network(each.strip(), strict=False) for each in ranges]
        is_6 = frontend.startswith("[")
        self.lines |= {f"SRC {frontend} {each}" for each in networks if (each.version == 6) == is_6}


def rank(endpoint):
    return endpoint["ready"], endpoint["serving"], endpoint["local"], -endpoint["tier"]


def is_served(service):
    spec, labels = service["spec"], service["metadata"].get("labels", {})
    is_named = spec.get("type") != "ExternalName" and "None" not in spec.get("clusterIPs", [])
    return is_named and not any(each in labels for each in OF_OTHERS)


def age(service):
    meta = service["metadata"]
    created = meta.get("creationTimestamp", "")
    return not created, created, meta.get("namespace", "default"), meta["name"]
