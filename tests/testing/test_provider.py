"""The tests for providers: the built-in ones and the example pass them, and a wrong provider fails them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lbagent.cloud.builtin.baremetal_provider import BaremetalProvider
from lbagent.cloud.builtin.fake_provider import FakeProvider
from lbagent.cloud.builtin.none_provider import NoneProvider
from lbagent.cloud.builtin.pool_balancers import PoolProvider
from lbagent.cloud.provider import (
    CloudProvider,
    Ingress,
    InstanceMetadata,
    InstancesV2,
    LoadBalancer,
    LoadBalancerStatus,
    Node,
    Service,
)
from lbagent.testing.provider import ProviderSuite

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "provider"


class TestNone(ProviderSuite):
    def make_provider(self) -> CloudProvider:
        return NoneProvider(None)


class TestFake(ProviderSuite):
    def make_provider(self) -> CloudProvider:
        return FakeProvider(None)


class TestPool(ProviderSuite):
    def make_provider(self) -> CloudProvider:
        return PoolProvider("pools: [{name: a, addresses: [198.51.100.0/28]}]")


class TestBaremetal(ProviderSuite):
    def make_provider(self) -> CloudProvider:
        return BaremetalProvider("machines: [{name: n1, addresses: [192.0.2.1]}, {name: n2, addresses: [192.0.2.2]}]")


def test_the_example() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(EXAMPLE), "-c", "/dev/null", "-p", "no:cacheprovider", str(EXAMPLE)],
        env={**os.environ, "PYTHONPATH": str(EXAMPLE), "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, cwd=EXAMPLE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


class WrongMachines(InstancesV2):
    """A different machine each time."""

    def __init__(self) -> None:
        self.count = 0

    async def exists(self, node: Node) -> bool:
        return True

    async def is_shut_down(self, node: Node) -> bool:
        return False

    async def metadata(self, node: Node) -> InstanceMetadata:
        self.count += 1
        return InstanceMetadata(f"wrong://{self.count}")


class Wrong(LoadBalancer, CloudProvider):
    """A different address each time, one name for all, and no deletion."""

    name = "wrong"  # type: ignore[assignment]

    def __init__(self) -> None:
        self.count = 0

    def load_balancer(self) -> LoadBalancer:
        return self

    def instances_v2(self) -> InstancesV2:
        return WrongMachines()

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        return LoadBalancerStatus((Ingress(ip="192.0.2.1"),))

    async def ensure(self, cluster: str, service: Service, nodes: Sequence[Node]) -> LoadBalancerStatus:
        self.count += 1
        return LoadBalancerStatus((Ingress(ip=f"192.0.2.{self.count}"),))

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        pass

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        raise KeyError(service.key)


Wrong.name = lambda _self, _cluster, _service: "one"  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("test", [name for name in dir(ProviderSuite) if name.startswith("test_")])
def test_a_provider_that_does_wrong(test: str) -> None:
    suite = ProviderSuite()
    suite.make_provider = Wrong  # type: ignore[method-assign, type-abstract]
    with pytest.raises((AssertionError, KeyError)):
        getattr(suite, test)()
