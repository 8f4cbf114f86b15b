"""Kubernetes manifests for tests, in a user's form, written by rename."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of a slice; with its own port it gets its own slice."""

    address: str
    port: int = 8080
    node: str = ""
    ready: bool = True
    serving: bool | None = None
    terminating: bool = False


@dataclass
class Manifest:
    """A Service and its EndpointSlices, both families."""

    name: str
    vips: Sequence[str]
    endpoints: Sequence[Endpoint]
    port: int = 80
    protocol: str = "TCP"
    algorithm: str = "random"
    namespace: str = "e2e"
    spec: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)

    def objects(self) -> list[dict[str, Any]]:
        """Return them as Kubernetes objects."""
        port = {"name": "p", "protocol": self.protocol, "port": self.port, "targetPort": "p"}
        annotations = {"lbagent.io/algorithm": self.algorithm, **self.annotations}
        service = {
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": self.name, "namespace": self.namespace, "annotations": annotations},
            "spec": {"type": "ClusterIP", "clusterIPs": list(self.vips), "clusterIP": self.vips[0], "ports": [port], **self.spec},
            "status": self.status,
        }  # fmt: skip
        slices: dict[tuple[str, int], list[Endpoint]] = {}
        for endpoint in self.endpoints:
            family = "IPv6" if ":" in endpoint.address else "IPv4"
            slices.setdefault((family, endpoint.port), []).append(endpoint)
        return [service, *(self._slice(*key, members) for key, members in sorted(slices.items()))]

    def _slice(self, family: str, port: int, members: list[Endpoint]) -> dict[str, Any]:
        return {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": f"{self.name}-{family.lower()}-{port}", "namespace": self.namespace,
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "addressType": family,
            "ports": [{"name": "p", "protocol": self.protocol, "port": port}],
            "endpoints": [_endpoint(member) for member in members],
        }  # fmt: skip

    def write(self, folder: Path) -> Path:
        """Write it into the folder as NAME.yaml."""
        return put(folder, f"{self.name}.yaml", yaml.safe_dump_all(self.objects()))


def _endpoint(member: Endpoint) -> dict[str, Any]:
    conditions: dict[str, bool] = {"ready": member.ready}
    if member.serving is not None:
        conditions["serving"] = member.serving
    if member.terminating:
        conditions["terminating"] = True
    out: dict[str, Any] = {"addresses": [member.address], "conditions": conditions}
    return out | ({"nodeName": member.node} if member.node else {})


def put(folder: Path, name: str, text: str) -> Path:
    """Write a file of the folder and rename it into place: the agent never reads half of it."""
    hidden = folder / f".{name}.new"
    hidden.write_text(text)
    os.replace(hidden, folder / name)
    return folder / name
