"""A box for the agent: a namespace with one device, a bpffs and a folder of manifests of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import netns
from tests.lab.agent import Agent, program
from tests.lab.netns import Namespace, veth, wait_for
from tests.lab.scratch import scratch_folder


class Box:
    """What tests.lab.agent.Agent needs of a laboratory, and no more."""

    def __init__(self) -> None:
        self.closing = contextlib.ExitStack()
        self.folder, root = scratch_folder(self.closing, "box")
        self.bpffs, self.socket = root / "lbagent", self.folder / "agent.sock"
        self.manifests = self.folder / "manifests"
        self.manifests.mkdir()
        self.node, self.peer = Namespace("box"), Namespace("boxpeer")
        self.node.sysctl("ipv4/ip_forward", 1)
        self.node.sysctl("ipv6/conf/all/forwarding", 1)
        self.closing.callback(self.node.delete)
        self.closing.callback(self.peer.delete)
        self.add_device()
        self.agent = self.make_agent()

    def add_device(self) -> None:
        veth(self.node, "eth0", self.peer, "eth0")
        self.node.ip("addr add 10.7.0.1/24 dev eth0", "route add default via 10.7.0.2")
        self.peer.ip("addr add 10.7.0.2/24 dev eth0")

    def make_agent(self, *arguments: str) -> Agent:
        agent = Agent(self, self.manifests, attach="auto", arguments=arguments)  # type: ignore[arg-type]
        agent.devices = ["eth0"]
        return agent

    def write(self, name: str, *objects: dict[str, Any]) -> None:
        """Replace a manifest file as an operator's tool does: whole, by rename."""
        draft = self.manifests / f".{name}.new"
        draft.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        draft.rename(self.manifests / name)

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run any lbagent command in the box, to its end."""
        return self.node.run([*program(), *words], env={**os.environ, **env})

    def failed_start(self, *arguments: str, device: str = "eth0", **env: str) -> subprocess.CompletedProcess[str]:
        """Run an agent that is expected to end by itself."""
        agent = self.make_agent(*arguments)
        agent.devices = [device]
        return self.run(*agent.argv()[len(program()) :], **env)

    def until_dump(self, condition, what: str) -> list[str]:  # type: ignore[no-untyped-def]
        """Wait until `map dump` satisfies the condition; return it."""
        seen: list[str] = []

        def look() -> bool:
            seen[:] = self.agent.dump()
            return bool(condition(seen))

        wait_for(look, what)
        return seen


@pytest.fixture
def box() -> Iterator[Box]:
    """A box with nothing running yet."""
    netns.sweep()
    box = Box()
    try:
        yield box
    finally:
        box.closing.close()


def service(name: str, vip: str, port: int = 80, **spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": port, "protocol": "TCP", "targetPort": 8080}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "box"},
        "spec": {"clusterIP": vip, "clusterIPs": [vip], "ports": ports, **spec},
    }


def endpoints(name: str, *addresses: str) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-x", "namespace": "box", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
    }


def web(*addresses: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return service("web", "10.96.0.10"), endpoints("web", *addresses)
