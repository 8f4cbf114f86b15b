"""The rows that `lbagent apilb` prints, of plain values. They contain no secret."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from lbagent.apilb.instance import Instance, InstanceKey, SshAccess
from lbagent.apilb.instance_plan import Pair, Sight
from lbagent.apilb.plan_records import Step
from lbagent.errors import LbError
from lbagent.probes.probe_spec import ProbeSpec

Row = dict[str, Any]


def instance_row(instance: Instance) -> Row:
    """Return an instance after inheritance and defaults."""
    return {
        "pool": instance.pool,
        "name": instance.name,
        "image": instance.image,
        "mode": str(instance.mode),
        "bindAddress": instance.bind_address,
        "servers": list(instance.servers),
        "hostConfigPath": instance.host_config_path,
        "host": {"ssh": _ssh(instance.ssh)} if instance.ssh else {"direct": {}},
        "healthCheck": _health_check(instance.health_check or ProbeSpec()),
        "onMarkedDown": str(instance.on_marked_down),
    }


def step_row(step: Step) -> Row:
    """Return a step of a plan."""
    changes = [{"field": each.field, "old": each.old, "new": each.new} for each in step.changes]
    return {"pool": step.pool, "name": step.name, "host": step.host, "action": str(step.action), "changes": changes}


def status_row(pair: Pair, seen: Sight, health: Mapping[InstanceKey, list[Row]]) -> Row:
    """Return what a host has of an instance, and its servers; unknown health is None."""
    item = pair.item
    unknown = {"up": None, "since": None, "last": None}
    servers = [{"address": each} | unknown for each in pair.wanted.servers] if pair.wanted else []
    fields = ("address", *unknown)
    known = [{field: row[field] for field in fields} for row in health.get(item.key, ())]
    status = str(seen) if isinstance(seen, LbError) else seen.status
    return {"pool": item.pool, "name": item.name, "host": item.host, "status": status, "servers": known or servers}


def change_lines(row: Row) -> Iterator[str]:
    """Iterate over the changes of a step's row for a person: texts of several lines as a diff."""
    for change in row["changes"]:
        old, new = change["old"], change["new"]
        if "\n" in old + new:
            yield f"{change['field']}:"
            for line in list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0))[2:]:
                if not line.startswith("@@"):
                    yield f"  {line}"
        else:
            yield f"{change['field']}: {old or '-'} -> {new or '-'}"


def _ssh(ssh: SshAccess) -> Row:
    return {
        "address": ssh.address,
        "user": ssh.user,
        "port": ssh.port,
        "connectionTimeout": seconds_text(ssh.connection_timeout),
        "retryTimeout": seconds_text(ssh.retry_timeout),
        "retryInterval": seconds_text(ssh.retry_interval),
    }


def _health_check(check: ProbeSpec) -> Row:
    return {
        "path": check.path,
        "interval": seconds_text(check.interval),
        "timeout": seconds_text(check.timeout),
        "fall": check.fall,
        "rise": check.rise,
        "caFile": check.ca_file,
        "host": check.host,
    }


def seconds_text(seconds: float) -> str:
    """Return seconds in the form of pool files: `2s`, `250ms`."""
    return f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:g}ms"
