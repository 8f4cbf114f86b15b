"""The state file: the deployed instances and their hosts, keyed by pool and name. It has no secrets.

Its form is the seed's (an entry has a container, its host and its files), so that one reader reads both; the seed's entries are
keyed by index, lbagent's by name. `version` is written last: a file with lbagent's keys and without a version is truncated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import yaml
from msgspec import Struct

from lbagent.apilb.files.pool_settings import explicit_values, read_ssh
from lbagent.apilb.files.section import Section
from lbagent.apilb.instance import DOCKER_HOST, Mode, SshAccess
from lbagent.apilb.plan_records import RecordedInstance

VERSION = 1
POOLS = "apiLoadBalancerPools"
_INDEX = re.compile(r"[0-9]+", re.ASCII)  # a key of the seed's


class Deployed(Struct, frozen=True, kw_only=True):
    """The contents of a state."""

    recorded: tuple[RecordedInstance, ...] = ()
    others: dict[str, Any] = {}

    def of_pool(self, pool: str) -> tuple[RecordedInstance, ...]:
        """Return the instances of a pool."""
        return tuple(each for each in self.recorded if each.pool == pool)


def read_state(section: Section, default_pool: str) -> Deployed:
    """Read `state`: of several pools under apiLoadBalancerPools, else of the one pool at the top level of the file."""
    version = section.value("version")
    is_ours = isinstance(version, int)
    if is_ours and version != VERSION:
        section.fault(
            "version", f"another lbagent wrote version {version}; this one reads {VERSION}, and changes nothing here"
        )
        return Deployed()
    pools = section.section(POOLS)
    if pools is None:
        names = [key for key in section.keys() if key != "version" or not is_ours]  # noqa: SIM118 - no mapping
        return Deployed(recorded=tuple(_entries(section, names, default_pool, complete=is_ours)))
    recorded: list[RecordedInstance] = []
    for name in pools.keys():  # noqa: SIM118
        if pool := pools.section(name):
            recorded += _entries(pool, pool.keys(), name, complete=is_ours)
    others = {key: section.value(key) for key in section.keys() if key not in (POOLS, "version")}  # noqa: SIM118
    return Deployed(recorded=tuple(recorded), others=others)


def read_state_of_pool(section: Section, pool: str) -> tuple[RecordedInstance, ...]:
    """Read the `state` inside one of several pools."""
    complete = "version" in section
    section.value("version")
    names = [key for key in section.keys() if key != "version"]  # noqa: SIM118
    return tuple(_entries(section, names, pool, complete=complete))


def _entries(section: Section, keys: Iterable[str], pool: str, *, complete: bool) -> list[RecordedInstance]:
    found = []
    for key in keys:
        if not complete and not _INDEX.fullmatch(key):
            section.fault(key, "the state ends before its version: it is truncated; restore a complete copy")
            return []
        entry = section.section(key) or section
        if entry is section:
            section.fault(key, "it is empty; it must have the entry of an instance")
        elif recorded := _entry(entry, pool):
            found.append(recorded)
    return found


def _entry(section: Section, pool: str) -> RecordedInstance | None:
    container = section.section("container")
    config = container.section("config") if container else None
    status = container.section("status") if container else None
    runtime = container.section("runtime") if container else None
    docker = runtime.section("docker") if runtime else None
    host, files = section.section("host"), section.section("configFiles")
    ssh = host.section("ssh") if host else None
    if config is None or not (name := config.text("name")):
        (config or section).fault("name", "it is missing; the entry of an instance has container.config.name")
        return None
    path = next(iter(files.keys()), "") if files else ""
    return RecordedInstance(
        pool=pool,
        name=name,
        container_id=(status.text("id") if status else None) or "",
        status=(status.text("status") if status else None) or "",
        image=config.text("image") or "",
        mode=section.choice("mode", Mode) or Mode.HAPROXY,
        host_config_path=path or _mounted(config),
        config_text=(files.text(path) if files and path else None) or "",
        ssh=_access(ssh) if ssh else None,
        docker_host=(docker.text("host") if docker else None) or DOCKER_HOST,
    )


def _access(section: Section) -> SshAccess | None:
    settings = read_ssh(section)
    if not settings.address:
        section.fault("address", "address must be set")
        return None
    return SshAccess(**explicit_values(settings))


def _mounted(config: Section) -> str:
    """Return the path of a file that did not exist when the state was written."""
    mounts = config.sections("mounts")
    return (mounts[0].text("source") or "") if mounts else ""


def state_text(deployed: Deployed, *, one_pool: bool) -> str:
    """Return the text of a state file. `one_pool`: the pool and its state are at the top level of the file."""
    pools: dict[str, dict[str, Any]] = {}
    names = Counter((each.pool, each.name) for each in deployed.recorded)
    for each in deployed.recorded:
        key = each.name if names[each.pool, each.name] == 1 else f"{each.name}@{each.host}"
        pools.setdefault(each.pool, {})[key] = _entry_values(each)
    alone: dict[str, Any] = next(iter(pools.values()), {})
    if one_pool and len(pools) <= 1 and not deployed.others and not alone.keys() & {"version", POOLS}:
        state = alone
    else:
        state = {**deployed.others, POOLS: pools}
    return yaml.dump({"state": state | {"version": VERSION}}, Dumper=_Dumper, sort_keys=False, width=1000)


def _entry_values(recorded: RecordedInstance) -> dict[str, Any]:
    config = {"name": recorded.name} | ({"image": recorded.image} if recorded.mode is Mode.HAPROXY else {})
    return {
        "container": {
            "config": config | {"mounts": [{"source": recorded.host_config_path}]},
            "status": {"id": recorded.container_id, "status": recorded.status},
            "runtime": {"docker": {"host": recorded.docker_host}},
        },
        "host": {"ssh": _ssh_values(recorded.ssh)} if recorded.ssh else {"direct": {}},
        "mode": str(recorded.mode),
        "configFiles": {recorded.host_config_path: recorded.config_text},
    }


def _ssh_values(ssh: SshAccess) -> dict[str, Any]:
    """Return the access to a host: names of files, without passwords and keys."""
    optional = {
        "privateKeyFile": ssh.private_key_file,
        "hostKey": ssh.host_key,
        "knownHostsFile": ssh.known_hosts_file,
        "insecureIgnoreHostKey": ssh.insecure_ignore_host_key,
    }
    return {
        "address": ssh.address,
        "user": ssh.user,
        "port": ssh.port,
        "connectionTimeout": f"{ssh.connection_timeout:.9g}s",
        "retryTimeout": f"{ssh.retry_timeout:.9g}s",
        "retryInterval": f"{ssh.retry_interval:.9g}s",
        **{key: value for key, value in optional.items() if value},
    }


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes texts of several lines as blocks, and quotes a text that is a number in YAML 1.2 (an id such as 12e4)."""


def _text(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text else None if text[:1].isalpha() or text.startswith("/") else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
