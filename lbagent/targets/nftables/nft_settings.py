"""The settings of `--renderer nftables=table=NAME,priority=N,family=ipv4`, and those of the agent that its rules depend on."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lbagent.config import Config
from lbagent.errors import ConfigError
from lbagent.model.family import Family
from lbagent.model.service import CIDR
from lbagent.targets.nftables.chains import DEFAULT_PRIORITY, TableSettings
from lbagent.targets.nftables.map_specs import DEFAULT_TABLE

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,30}")
_FAMILIES = {"ipv4": Family.IPV4, "ipv6": Family.IPV6}
FIRST_PORT, LAST_PORT = 1024, 65535  # that the kernel gives to translated connections
MAX_PRIORITY = 50  # the hooks of conntrack and of routing are 100 and more away


def parsed(text: str) -> dict[str, str]:
    """Return `KEY=VALUE,...` by key. Raises ConfigError."""
    out: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"--renderer nftables={text}: {part!r} is not KEY=VALUE")
        if key in out:
            raise ConfigError(f"--renderer nftables={text}: {key} is given twice")
        out[key] = value
    return out


def table_settings(settings: Mapping[str, str], config: Config, *, with_device_set: bool = False) -> TableSettings:
    """Return what the rules depend on. Raises ConfigError."""
    if unknown := sorted(settings.keys() - {"family", "priority", "table"}):
        raise ConfigError(f"--renderer nftables: unknown setting {unknown[0]!r}; there are family, priority, table")
    families = frozenset(Family)
    if family := settings.get("family"):
        if family not in _FAMILIES:
            raise ConfigError(f"--renderer nftables: family={family}: expected ipv4 or ipv6")
        families = frozenset({_FAMILIES[family]})
    table, priority = settings.get("table", DEFAULT_TABLE), settings.get("priority", str(DEFAULT_PRIORITY))
    if not _NAME.fullmatch(table):
        raise ConfigError(f"--renderer nftables: table={table}: expected letters, digits, - and _, at most 31")
    if not re.fullmatch(r"[+-]?\d{1,3}", priority) or abs(int(priority)) > MAX_PRIORITY:
        raise ConfigError(
            f"--renderer nftables: priority={priority}: expected a number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        )
    return TableSettings(
        table=table,
        priority=int(priority),
        pod_devices=config.pod_device,
        masquerade_all=config.masquerade_all,
        external_clusterip=config.external_clusterip,
        reject_rate=config.reject_rate,
        families=families,
        egress_snat=config.egress_snat == "on",
        cluster_cidrs=tuple(map(CIDR.parse, config.cluster_cidr)),
        with_device_set=with_device_set,
    )


def other_ports(first: int, last: int) -> tuple[int, int]:
    """Return the first and the last source port for translated connections beside a range: the larger one of two ranges."""
    below, above = (FIRST_PORT, first - 1), (max(last + 1, FIRST_PORT), LAST_PORT)
    return max(above, below, key=lambda ports: ports[1] - ports[0])
