"""kube-proxy as a side: the real one in nftables mode, with a real API server that has a folder's objects."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.kube_api.cluster import NODE, Cluster, collection
from tests.kube_api.control_plane import MERGE, ControlPlane
from tests.kube_api.kube_proxy import KubeProxy
from tests.kube_api.programs import Programs
from tests.kube_api.proxy import Proxy
from tests.oracle.asker import Outcome
from tests.oracle.folders import Folder, Frontend, Service
from tests.oracle.judge import Design
from tests.oracle.twins import NFTABLES, NODE_IPS, Side, Twins, agent_side, laboratory

RANGES = "10.96.0.0/16,fd00:96::/108"  # of ClusterIPs
POD_RANGES = "10.244.0.0/16,fd44::/15"
MARKS = {"ip": "10.96.9.9", "ip6": "fd00:96::9:9"}
MARK_ENDPOINTS = {"IPv4": "10.244.9.9", "IPv6": "fd44::9:9"}
Obj = dict[str, Any]


@dataclass
class ProxySide(Side):
    """A laboratory whose node has kube-proxy."""

    plane: ControlPlane
    known: dict[str, Obj] = field(default_factory=dict)  # by path

    def put(self, folder: Folder, mark: int) -> None:
        """Write what changed, first what goes: a Service whose addresses change is made again."""
        wanted = {f"{collection(obj)}/{obj['metadata']['name']}": obj for obj in objects(folder, mark)}
        for path in [path for path, obj in self.known.items() if wanted.get(path) != obj]:
            self.plane.ask("DELETE", path)
            del self.known[path]
        for path, obj in wanted.items():
            if path in self.known:
                continue
            self.plane.ask("POST", collection(obj), obj)
            if status := obj.get("status"):
                self.plane.ask("PATCH", f"{path}/status", {"status": status}, MERGE)
            self.known[path] = obj

    def has(self, mark: int) -> bool:
        """Look for the mark and its endpoint in the rules of both families: kube-proxy has what was written before them, too.

        It watches Services and EndpointSlices apart, and the last object of either kind is one of the mark.
        """
        return all(f"{address} . tcp . {mark} " in self._addresses(family) for family, address in MARKS.items())

    def _addresses(self, family: str) -> str:
        argv = self.lab.node.command(["nft", "list", "map", family, "kube-proxy", "service-ips"])
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def objects(folder: Folder, mark: int) -> list[Obj]:
    """Return a folder's objects as the API server takes them; the mark has both families."""
    found = [obj for service in folder.services for obj in service.objects()]
    name = f"p{mark}"  # the endpoints of the mark before have no port of this name
    ports = [{"name": name, "protocol": "TCP", "port": mark}]
    ips = list(MARKS.values())
    spec = {
        "type": "ClusterIP", "clusterIP": ips[0], "clusterIPs": ips, "ports": ports, "ipFamilyPolicy": "RequireDualStack",
    }  # fmt: skip
    found.append({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "mark"}, "spec": spec})
    found += [
        {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
            "metadata": {"name": f"mark-{family.lower()}", "labels": {"kubernetes.io/service-name": "mark"}},
            "ports": [{"name": name, "protocol": "TCP", "port": 80}], "endpoints": [{"addresses": [address]}],
        }
        for family, address in MARK_ENDPOINTS.items()
    ]  # fmt: skip
    return [json.loads(json.dumps(obj)) | {"metadata": obj["metadata"] | {"namespace": "default"}} for obj in found]


class NftablesAndKubeProxy(Design):
    """lbagent's nftables first."""

    def is_stated_of_open(
        self, before: Folder, now: Folder, frontend: Frontend, client: str, felt: tuple[str, str]
    ) -> bool:
        """kube-proxy ends no connection."""
        del before, now, frontend, client
        return felt[1] == "kept"

    def normal(self, seen: Counter[Outcome], client: str) -> Mapping[Outcome, int]:
        """Leave out what refuses a client (kube-proxy sends ICMP alone), and source addresses.

        kube-proxy masquerades what comes from outside, also to backends of the node. For a process of the node a rule that
        drops is an error of `connect` or `send`, as one that refuses is.
        """
        out: defaultdict[Outcome, int] = defaultdict(int)
        for outcome, count in seen.items():
            is_refused = outcome.kind == "refused" or (client == "node" and outcome.kind != "answered")
            out[Outcome("refused") if is_refused else replace(outcome, source="")] += count
        return out


def plain(folder: Folder) -> Folder:
    """Return a folder with what kube-proxy has, too: no weights, no Maglev, no states, no ranges that exclude."""
    return Folder(tuple(map(_plain, folder.services)))


def _plain(service: Service) -> Service:
    ranges = service.ranges if service.ranges != "nobody" else ""  # of one family: kube-proxy admits the other one
    return replace(service, weights=(), maglev=False, deny=False, ranges=ranges)


@contextlib.contextmanager
def made(programs: Programs, binary: Path, folder: Path) -> Iterator[Twins]:
    """Make both: lbagent with nftables, and kube-proxy."""
    with contextlib.ExitStack() as closing:
        plane = ControlPlane(programs, folder, "oracle")
        closing.callback(plane.close)
        plane.start(f"--service-cluster-ip-range={RANGES}")
        Cluster(plane).prepare()
        addresses = [{"type": "InternalIP", "address": address} for address in NODE_IPS]
        plane.ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {"addresses": addresses}}, MERGE)
        lab, asker = laboratory("kube", closing)
        way = Proxy(plane.namespace, 6443, listen=lab.node)
        closing.callback(way.close)
        config = plane.kubeconfig(plane.lasting_token, lab.folder / "kubeconfig", way.port)
        other = ProxySide("kube-proxy", lab, asker, plane)
        other.put(Folder(()), 1)
        KubeProxy(lab, binary, config, arguments=[f"--cluster-cidr={POD_RANGES}"]).start()
        yield Twins([agent_side("nftables", NFTABLES, closing), other])
