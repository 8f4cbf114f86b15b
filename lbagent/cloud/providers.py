"""The providers by name, and what each needs to plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lbagent.cloud import pool_provider
from lbagent.cloud.planned_balancer import Action, PlannedBalancer
from lbagent.errors import ConfigError
from lbagent.objects.records import ObjectSnapshot
from lbagent.pools.read_pools import read_pools

Plan = Callable[[ObjectSnapshot, str], list[PlannedBalancer]]  # objects, class -> rows by namespace and name


class Provider(NamedTuple):
    """A provider: one sentence about it, and how it is made from its configuration file ('' = none)."""

    summary: str
    make: Callable[[str], Plan]


def _pool(config: str) -> Plan:
    if not config:
        raise ConfigError("--config: provider pool needs the file that names its pools")
    file = read_pools(config)
    return lambda objects, lb_class: pool_provider.plan(file, objects, lb_class)


def _none(_config: str) -> Plan:
    def plan(objects: ObjectSnapshot, _class: str) -> list[PlannedBalancer]:
        message = "provider none has no balancers"
        return [PlannedBalancer(service=key, action=Action.IGNORE, message=message) for key in sorted(objects.services)]

    return plan


PROVIDERS = {
    "none": Provider("No balancers: Services stay as they are.", _none),
    "pool": Provider("Addresses of pools, named in the file of --config.", _pool),
}


def provider(name: str) -> Provider:
    """Return a provider. Raises ConfigError, which names those there are."""
    if name not in PROVIDERS:
        raise ConfigError(f"--provider: unknown provider {name!r}; there are: {', '.join(PROVIDERS)}")
    return PROVIDERS[name]
