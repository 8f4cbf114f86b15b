"""Random folders of good manifests, from small pools, so that ports, addresses, names and nodes often coincide."""

from __future__ import annotations

from random import Random

V4, V6 = ("10.96.0.1", "10.96.0.2", "10.96.0.3"), ("fd00:96::1", "fd00:96::2")
ENDPOINTS = {
    4: ("10.244.1.1", "10.244.1.2", "10.244.2.10", "10.244.2.9", "9.9.9.9"),
    6: ("fd00:244::1", "fd00:244::2", "fd00:244::10"),
}
OUTSIDE = ("203.0.113.1", "203.0.113.2", "2001:db8:9::1")
INGRESS = (
    {"ip": "198.51.100.1"},
    {"ip": "198.51.100.2"},
    {"ip": "2001:db8:8::1"},
    {"ip": "198.51.100.3", "ipMode": "Proxy"},
    {"hostname": "x.y"},
)
RANGES = ("10.0.0.0/8", "10.1.2.3/8", " 192.168.1.0/24", "2001:db8::1/32", "0.0.0.0/0")


class Folder:
    """One folder; `objects` are in the order of the files."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.objects: list[dict] = []
        for name, zone in (("n1", random.choice((None, "a", "b"))), ("n2", "b")):
            if self.chance(0.6):
                self.node(name, zone)
        for name in random.sample(("web", "dns", "api", "db"), random.randint(1, 4)):
            self.service(name)
        for name in ("p1", "p2"):
            if self.chance(0.2):
                self.add(
                    "v1", "Pod", name, {"annotations": {"lbagent.io/weight": random.choice(("0", "100"))}}, spec={}
                )
        if self.chance(0.3):
            spec = {
                "address": random.choice(ENDPOINTS[4]) + ":8080/TCP",
                "state": random.choice(("maintenance", "quarantined", "active")),
            }
            where = random.choice(({}, {"node": "n1"}, {"node": "n2"}))
            self.add("lbagent.io/v1alpha1", "BackendState", "b", spec=spec | where)
        random.shuffle(self.objects)

    def chance(self, likely: float) -> bool:
        return self.random.random() < likely

    def some(self, pool, most):
        return self.random.sample(pool, self.random.randint(0, most))

    def add(self, version, kind, name, meta=None, **rest) -> None:
        self.objects.append({"apiVersion": version, "kind": kind, "metadata": {"name": name} | (meta or {})} | rest)

    def node(self, name, zone) -> None:
        ips = ("192.168.0.1", "192.168.0.2", "fd00::1") if name == "n1" else ("192.168.0.9",)
        addresses = [{"type": "InternalIP", "address": ip} for ip in ips if self.chance(0.6)]
        addresses.append({"type": "ExternalIP", "address": "203.0.113.9"})
        meta = {"labels": {"topology.kubernetes.io/zone": zone}} if zone else {}
        self.add("v1", "Node", name, meta, status={"addresses": addresses})

    def service(self, name) -> None:
        choice, chance = self.random.choice, self.chance
        families = choice((4,) if chance(0.5) else ((6,), (4, 6))) if chance(0.5) else (4,)
        families = (families,) if isinstance(families, int) else families
        ips = [choice(V4 if each == 4 else V6) for each in families]
        ports = self.ports()
        spec = {
            "type": "ExternalName"
            if chance(0.04)
            else choice(("ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer")),
            "clusterIPs": ["None"] if chance(0.04) else ips,
            "ipFamilies": [f"IPv{each}" for each in families],
            "ports": ports,
        }
        for field, values, likely in (
            ("externalTrafficPolicy", ("Local", "Cluster"), 0.5),
            ("internalTrafficPolicy", ("Local", "Cluster"), 0.4),
            ("sessionAffinity", ("ClientIP", "None"), 0.3),
            ("sessionAffinityConfig", [{"clientIP": {"timeoutSeconds": each}} for each in (1, 300, 86400)], 0.2),
        ):
            if chance(likely):
                spec[field] = choice(values)
        # now and then what others have by a better claim: a ClusterIP, an ingress address, an address of a node
        spec["externalIPs"] = self.some(
            (*OUTSIDE, *V4, V6[0], INGRESS[0]["ip"], "192.168.0.1") if chance(0.3) else OUTSIDE, 2
        )
        if chance(0.4):
            spec["loadBalancerSourceRanges"] = self.some(RANGES, 3)
        meta = {"annotations": {}, "labels": {"service.kubernetes.io/service-proxy-name": "x"} if chance(0.04) else {}}
        for key, values in (
            ("algorithm", ("maglev", "random")),
            ("source-ranges-policy", ("deny", "allow")),
            ("forwarding-mode", ("dsr", "snat")),
            ("tier-min", ("1", "2", "50%", "100%")),
            ("source-ranges-for", ("all", "loadbalancer")),
        ):
            if chance(0.25):
                meta["annotations"][f"lbagent.io/{key}"] = choice(values)
        if chance(0.5):
            meta["creationTimestamp"] = choice(("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"))
        self.add("v1", "Service", name, meta, spec=spec, status={"loadBalancer": {"ingress": self.some(INGRESS, 3)}})
        self.slices(name, ports)

    def ports(self):
        choice, chance = self.random.choice, self.chance
        found = []
        for name, number, node_port in (
            ("http", choice((80, 81)), 30080),
            ("dns", choice((53, 54)), choice((30053, 30054))),
        ):
            port = {"name": name, "port": number}
            if chance(0.3):
                port["protocol"] = choice(("TCP", "UDP"))
            if chance(0.7):
                port["nodePort"] = node_port
            found.append(port)
        if chance(0.5):
            return found
        if chance(0.4):
            del found[0]["name"]
        return found[:1]

    def slices(self, name, ports) -> None:
        chance = self.chance
        hints = self.random.choice(("", "", "z", "n", "zn"))
        for number in range(self.random.randint(0, 3)):
            family = self.random.choice((4, 4, 6))
            meta = {"labels": {"kubernetes.io/service-name": name}}
            if chance(0.15):
                meta["annotations"] = {"lbagent.io/weight": self.random.choice(("0", "100"))}
            if chance(0.3):
                meta.setdefault("annotations", {})["lbagent.io/tier"] = self.random.choice("0127")
            kept = [port for port in ports if chance(0.9)]
            same = [{key: port[key] for key in ("name", "protocol") if key in port} for port in kept]
            self.add(
                "discovery.k8s.io/v1",
                "EndpointSlice",
                f"{name}-{number}",
                meta,
                addressType=f"IPv{family}",
                ports=[each | {"port": self.random.choice((8080, 8081))} for each in same],
                endpoints=[self.endpoint(family, hints) for _ in range(self.random.randint(0, 4))],
            )
        if chance(0.25):
            subset = {
                "addresses": [{"ip": self.random.choice(ENDPOINTS[4] + ENDPOINTS[6]), "nodeName": "n1"}],
                "notReadyAddresses": [{"ip": self.random.choice(ENDPOINTS[4])}],
                "ports": [
                    {key: port[key] for key in ("name", "protocol") if key in port} | {"port": 8080} for port in ports
                ],
            }
            self.add("v1", "Endpoints", name, subsets=[subset])

    def endpoint(self, family, hints):
        choice, chance = self.random.choice, self.chance
        found = {"addresses": [choice(ENDPOINTS[family])], "conditions": {}, "hints": {}}
        for word in ("ready", "serving", "terminating"):
            if chance(0.45):
                found["conditions"][word] = chance(0.5)
        if chance(0.7):
            found["nodeName"] = choice(("n1", "n2"))
        if chance(0.2):
            found["targetRef"] = {"kind": "Pod", "name": choice(("p1", "p2"))}
        if "z" in hints and chance(0.9):
            found["hints"]["forZones"] = [{"name": each} for each in self.random.sample("abc", 2)]
        if "n" in hints and chance(0.9):
            found["hints"]["forNodes"] = [{"name": each} for each in self.random.sample(("n1", "n2", "n3"), 2)]
        return found
