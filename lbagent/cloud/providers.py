"""The providers by name: built-in ones, and plug-ins by the entry points of `lbagent.cloud_providers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from lbagent.cloud import pool_provider, request_plan
from lbagent.cloud.builtin.fake_config import read_fake_config
from lbagent.cloud.builtin.fake_provider import FakeBalancers, FakeProvider
from lbagent.cloud.builtin.none_provider import NoneProvider
from lbagent.cloud.builtin.pool_balancers import PoolBalancers, PoolProvider
from lbagent.cloud.edge import edge_plan
from lbagent.cloud.edge.edge_config import read_edge_config
from lbagent.cloud.edge.edge_provider import EdgeProvider
from lbagent.cloud.planned_balancer import Action, PlannedBalancer
from lbagent.cloud.provider import CONFIG, CloudProvider, Factory
from lbagent.errors import ConfigError, LbError
from lbagent.model.address import parse_ip
from lbagent.objects.records import ObjectSnapshot
from lbagent.pools.read_pools import read_pools
from lbagent.textfile.followed_file import read_text_of

GROUP = "lbagent.cloud_providers"
Plan = Callable[
    [ObjectSnapshot, str, str], list[PlannedBalancer]
]  # objects, class, cluster -> rows by namespace and name


class Provider(NamedTuple):
    """A provider: one sentence about it, its factory, and the function that plans from a configuration file ('' = none)."""

    summary: str
    load: Callable[[], Factory]
    plan: Callable[[str], Plan]


def _pool_plan(config: str) -> Plan:
    if not config:
        raise ConfigError("provider pool needs the pools file", file=CONFIG)
    file = read_pools(config)
    name = PoolBalancers(file).name
    return lambda objects, lb_class, cluster: pool_provider.plan(file, objects, lb_class, partial(name, cluster))


def _no_plan(name: str) -> Plan:
    def plan(objects: ObjectSnapshot, _class: str, _cluster: str) -> list[PlannedBalancer]:
        message = f"provider {name} has no balancers"
        return [PlannedBalancer(service=key, action=Action.IGNORE, message=message) for key in sorted(objects.services)]

    return plan


def _fake_plan(path: str) -> Plan:
    with with_file_name(path):
        config = read_fake_config(read_text_of(path) or "" if path else "")
    given = tuple(parse_ip(each.ip) for each in config.status if each.ip)
    name = FakeBalancers(config).name
    return lambda objects, lb_class, cluster: request_plan.plan(objects, lb_class, given, partial(name, cluster))


def _plug_in_plan(provider_name: str, load: Callable[[], Factory], path: str) -> Plan:
    """Return the plan of a provider that is created from its file, and not initialized."""
    balancers = make_provider(provider_name, load(), read_text_of(path), path).load_balancer()
    if balancers is None:
        return _no_plan(provider_name)
    name = balancers.name
    return lambda objects, lb_class, cluster: request_plan.plan(objects, lb_class, None, partial(name, cluster))


def _edge_plan(path: str) -> Plan:
    with with_file_name(path):
        config = read_edge_config(read_text_of(path) or "")
    return lambda objects, lb_class, cluster: edge_plan.plan(config, objects, lb_class, cluster)


def _baremetal() -> Factory:
    from lbagent.cloud.builtin.baremetal_provider import (
        BaremetalProvider,
    )  # imports pyroute2, which the others do not need

    return BaremetalProvider


BUILTIN = {
    "none": Provider("No balancers: Services are not changed.", lambda: NoneProvider, lambda _: _no_plan("none")),
    "pool": Provider("Addresses of the pools in the --config file.", lambda: PoolProvider, _pool_plan),
    "edge": Provider(
        "Port mappings at the router of a home or branch (UPnP IGD, NAT-PMP).", lambda: EdgeProvider, _edge_plan
    ),
    "baremetal": Provider(
        "Machines of Nodes from the inventory in --config, and routes to their pods.",
        _baremetal,
        lambda _: _no_plan("baremetal"),
    ),
    "fake": Provider("Records calls and returns the answers in --config: for tests.", lambda: FakeProvider, _fake_plan),
}


def provider(name: str) -> Provider:
    """Return a provider. Raises ConfigError for an unknown name (with the known ones) or an ambiguous one."""
    plug_ins = [each for each in _plug_ins() if each.name == name]
    if len(plug_ins) + (name in BUILTIN) > 1:
        places = ["lbagent itself"] * (name in BUILTIN) + [_place(each) for each in plug_ins]
        raise ConfigError(f"--provider: there are two providers {name!r}: {', '.join(places)}; uninstall one")
    if name in BUILTIN:
        return BUILTIN[name]
    if not plug_ins:
        raise ConfigError(f"--provider: unknown provider {name!r}; there are: {', '.join(known())}")
    return _provider_of(plug_ins[0])


def known() -> list[str]:
    """Return every name, the built-in ones first."""
    return [*BUILTIN, *sorted({each.name for each in _plug_ins()} - BUILTIN.keys())]


def summaries() -> dict[str, str]:
    """Return one sentence about each provider."""
    found = {name: each.summary for name, each in BUILTIN.items()}
    for each in _plug_ins():
        found.setdefault(each.name, f"A plug-in: {_place(each)}.")
    return found


@contextmanager
def with_file_name(path: str) -> Iterator[None]:
    """Replace CONFIG by the file's name in a ConfigError of a factory."""
    try:
        yield
    except ConfigError as error:
        if not path or error.file != CONFIG:
            raise
        raise ConfigError(error.problem, file=path, line=error.line) from None


def make_provider(name: str, factory: Factory, text: str | None, path: str) -> CloudProvider:
    """Return a provider created from the text of its file (None: no file). Raises ConfigError."""
    try:
        with with_file_name(path):
            made = factory(text)
    except ConfigError:
        raise
    except LbError as error:
        raise ConfigError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - a plug-in may raise anything
        raise ConfigError(f"could not init cloud provider {name!r}: {type(error).__name__}: {error}") from None
    if not isinstance(made, CloudProvider):
        raise ConfigError(f"--provider: {name!r} returned a {type(made).__name__}, not a CloudProvider")
    return made


def _plug_ins() -> list[EntryPoint]:
    """Return every plug-in; a package found at two places of the path counts once."""
    found = {(each.name, each.value, each.dist.name if each.dist else ""): each for each in entry_points(group=GROUP)}
    return list(found.values())


def _place(plug_in: EntryPoint) -> str:
    return f"{plug_in.value} of {plug_in.dist.name}" if plug_in.dist else plug_in.value


def _provider_of(plug_in: EntryPoint) -> Provider:
    def load() -> Factory:
        try:
            loaded: Factory = plug_in.load()
        except Exception as error:  # noqa: BLE001 - importing a plug-in runs its code
            raise ConfigError(
                f"--provider: {_place(plug_in)} cannot be loaded: {type(error).__name__}: {error}"
            ) from None
        return loaded

    return Provider(f"A plug-in: {_place(plug_in)}.", load, partial(_plug_in_plan, plug_in.name, load))
