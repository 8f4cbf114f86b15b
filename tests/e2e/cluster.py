"""One laboratory with servers and an agent, and the helpers of the tests."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.lab import traffic
from tests.lab.agent import Agent
from tests.lab.manifests import Endpoint, Manifest
from tests.lab.netns import wait_for
from tests.lab.topology import DNS_PORT, HTTP_PORT, Lab
from tests.lab.traffic import Answer

WEB = ("10.96.0.10", "fd00:96::10")
DNS = ("10.96.0.53", "fd00:96::53")
VIP4, VIP6 = WEB
NODE = "demo-node"


@contextmanager
def routed_lab(tag: str) -> Iterator[Lab]:
    """Make a laboratory whose node has default routes, as nodes have, with all servers; skip the test without root."""
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")
    with Lab(tag=tag) as lab:
        lab.serve_all()
        lab.node.ip("route add default via 10.77.0.2", "route add default via fd77::2")
        yield lab


class Cluster:
    """The laboratory of the tests."""

    def __init__(self, lab: Lab, attach: str, arguments: Sequence[str] = ()) -> None:
        """Create an empty folder of manifests and an agent that is not started yet."""
        self.lab, self.client = lab, lab.client
        self.folder: Path = lab.folder / "manifests"
        self.folder.mkdir()
        self.agent = Agent(lab, self.folder, attach=attach, arguments=arguments)

    # --- manifests ---

    def endpoints(self, *names: str, port: int = HTTP_PORT) -> list[Endpoint]:
        """Return both families' endpoints of backends by name; b3 is a pod of this node."""
        out = []
        for name in names:
            backend = self.lab.backends[name]
            node = NODE if backend.role == "b3" else f"node-{backend.role}"
            out += [Endpoint(backend.ipv4, port, node), Endpoint(backend.ipv6, port, node)]
        return out

    def web(self, *names: str, **fields: object) -> Manifest:
        """Return the HTTP service with these backends (all three if none is named)."""
        return Manifest("web", WEB, self.endpoints(*(names or ("b1", "b2", "b3"))), **fields)  # type: ignore[arg-type]

    def dns(self, *names: str, **fields: object) -> Manifest:
        """Return the DNS-like service."""
        endpoints = self.endpoints(*(names or ("b1", "b2", "b3")), port=DNS_PORT)
        return Manifest("dns", DNS, endpoints, port=53, protocol="UDP", **fields)  # type: ignore[arg-type]

    def leaving(self, manifest: Manifest, *names: str) -> Manifest:
        """Return the manifest with terminating backends added, in Kubernetes' form."""
        port = manifest.endpoints[0].port
        out = [replace(e, ready=False, serving=True, terminating=True) for e in self.endpoints(*names, port=port)]
        return replace(manifest, endpoints=[*manifest.endpoints, *out])

    def serve(self, *manifests: Manifest) -> None:
        """Write manifests and wait until the agent has them in the kernel."""
        for manifest in manifests:
            manifest.write(self.folder)
        for manifest in manifests:
            self.wait_backends(manifest)
            wait_for(partial(self._selects_as, manifest), f"the algorithm and the affinity of {manifest.name}")

    def _selects_as(self, manifest: Manifest) -> bool:
        """Return whether a Service selects backends as its manifest has it."""
        wanted = manifest.algorithm, manifest.spec.get("sessionAffinity") == "ClientIP"
        found = [item for item in self.agent.api.services() if item["name"] == manifest.name]
        return all((item["algorithm"], item["affinity_timeout_s"] > 0) == wanted for item in found)

    def wait_backends(self, manifest: Manifest) -> None:
        """Wait until the agent shows exactly the ready endpoints of a manifest as selectable."""
        wanted = {
            f"[{e.address}]:{e.port}/{manifest.protocol}" if ":" in e.address else f"{e.address}:{e.port}/{manifest.protocol}"
            for e in manifest.endpoints if e.ready and not e.terminating
        }  # fmt: skip
        wait_for(lambda: self.selectable(manifest.name) == wanted, f"{manifest.name} with {sorted(wanted)}")

    def selectable(self, name: str) -> set[str] | None:
        """Return the backends of a service that get new flows; None for a service that the agent does not list."""
        found = [item for item in self.agent.api.services() if item["name"] == name]
        backends = {backend["address"] for item in found for backend in item["backends"] if backend["selectable"]}
        return backends if found else None

    # --- traffic ---

    def http(self, count: int = 60, vips: Sequence[str] = WEB) -> Counter[str]:
        """Count the backends that answer HTTP requests."""
        return self._each(count, [partial(traffic.http_get, vip, 80) for vip in vips])

    def ask_dns(self, count: int = 60, vips: Sequence[str] = DNS) -> Counter[str]:
        """Count the backends that answer DNS queries."""
        return self._each(count, [partial(traffic.dns_ask, vip, 53) for vip in vips])

    def _each(self, count: int, asks: Sequence[Callable[[], Answer]]) -> Counter[str]:
        out: Counter[str] = Counter()
        for ask in asks:
            out += traffic.spread(self.client, count // len(asks), ask)
        return out

    def load(
        self,
        *,
        web: bool = True,
        dns: bool = True,
        workers: int = 4,
        pause_s: float = 0.002,
        timeout_s: float = traffic.TIMEOUT_S,
    ) -> traffic.Load:
        """Return a load of requests over both families, not started. A request fails that has no answer within `timeout_s`."""
        asks: list[Callable[[], Answer]] = []
        asks += [partial(traffic.http_get, vip, 80, timeout_s=timeout_s) for vip in WEB] if web else []
        asks += [partial(traffic.dns_ask, vip, 53, timeout_s=timeout_s) for vip in DNS] if dns else []
        return traffic.Load(self.client, asks, workers, pause_s)

    def talkers(self, count: int = 12, vip: str = VIP4) -> traffic.Talkers:
        """Open connections that stay open."""
        return traffic.Talkers(self.client, vip, 80, count)

    def packets(self) -> Counter[str]:
        """Return packets by reason."""
        out: Counter[str] = Counter()
        for line in self.agent.api.metrics().splitlines():
            if line.startswith("lbagent_packets_total{"):
                out[line.split('"')[1]] = int(float(line.split()[-1]))
        return out
