"""Provider `fake`, for tests and demonstrations: it records each call and returns the configured answers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence

from lbagent.cloud.builtin.fake_config import Failure, FakeConfig, read_fake_config
from lbagent.cloud.provider import (
    CloudProvider,
    ImplementedElsewhere,
    LoadBalancer,
    LoadBalancerStatus,
    Node,
    RetryAfter,
    Service,
    default_load_balancer_name,
)
from lbagent.errors import LbError


class FakeBalancers(LoadBalancer):
    """Balancers that exist only in the record."""

    def __init__(self, config: FakeConfig) -> None:
        self.config = config
        self._left: dict[int, int] = {}  # how many times a configured failure still occurs, by its place
        self._there = _recorded(config.record)

    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        """Return the last ensured status, if the balancer was not deleted since."""
        is_there = service.uid in self._there if self.config.record else bool(service.status.ingress)
        return LoadBalancerStatus(self.config.status) if is_there or service.uid in self._there else None

    def name(self, cluster: str, service: Service) -> str:
        """Return the default name."""
        return default_load_balancer_name(service)

    async def ensure(self, cluster: str, service: Service, nodes: Sequence[Node]) -> LoadBalancerStatus:
        """Return the status of the configuration."""
        await self._call("ensure", cluster, service, nodes)
        return LoadBalancerStatus(self.config.status)

    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """Do nothing."""
        await self._call("update", cluster, service, nodes)

    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        """Remove the balancer."""
        await self._call("delete", cluster, service, ())
        self._there.discard(service.uid)

    async def _call(self, op: str, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        line: dict[str, object] = {
            "op": op,
            "service": service.key,
            "uid": service.uid,
            "name": self.name(cluster, service),
            "nodes": sorted(node.name for node in nodes),
        }
        _append(self.config.record, line)
        if op == "ensure":
            self._there.add(service.uid)
        await asyncio.sleep(self.config.delay_s.get(op, 0.0))
        for index, failure in enumerate(self.config.fail):
            if failure.op == op and failure.service in ("", service.key):
                self._fail(index, failure)

    def _fail(self, index: int, failure: Failure) -> None:
        if failure.times is not None:
            left = self._left.setdefault(index, failure.times)
            if not left:
                return
            self._left[index] = left - 1
        if failure.implemented_elsewhere:
            raise ImplementedElsewhere
        if failure.retry_after_s is not None:
            raise RetryAfter(failure.error or "the fake provider requests a later retry", failure.retry_after_s)
        raise LbError(failure.error)


class FakeProvider(CloudProvider):
    """Has only balancers."""

    name = "fake"

    def __init__(self, config: str | None) -> None:
        """Raises ConfigError."""
        self._balancers = FakeBalancers(read_fake_config(config or ""))

    def load_balancer(self) -> LoadBalancer:
        """Return the part for balancers."""
        return self._balancers

    def reload(self, config: str) -> None:
        """Replace the configuration. Raises ConfigError."""
        self._balancers.config = read_fake_config(config)


def _append(path: str, line: dict[str, object]) -> None:
    """Write a line with one write; it is in the file before the call begins."""
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _recorded(path: str) -> set[str]:
    """Return the uids of the Services whose balancers an earlier run created and did not delete."""
    there: set[str] = set()
    if path and os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    call = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # half written when that run ended
                if call.get("op") == "delete":
                    there.discard(call.get("uid", ""))
                elif call.get("op") == "ensure":
                    there.add(call.get("uid", ""))
    return there
