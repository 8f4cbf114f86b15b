"""The access to hosts of the state: a state has no secrets, so those of the pool files are used (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from lbagent.apilb.files.pool_settings import SshSettings, explicit_values
from lbagent.apilb.instance import Instance, SshAccess
from lbagent.apilb.plan_records import RecordedInstance

_LOG_IN = ("password", "private_key", "private_key_file")


def with_log_in(
    recorded: RecordedInstance, instances: Iterable[Instance], pools: Mapping[str, SshSettings]
) -> RecordedInstance:
    """Return a recorded instance with access to its host: that of an instance on the same host, else its pool's."""
    if recorded.ssh is None:
        return recorded
    same_host = [each for each in instances if each.ssh and is_same_host(each.ssh, recorded.ssh)]
    same_host.sort(key=lambda each: each.pool != recorded.pool)
    if same_host:
        return replace(recorded, ssh=same_host[0].ssh)
    settings = explicit_values(pools[recorded.pool]) if recorded.pool in pools else {}
    settings.pop("address", None)
    if any(
        getattr(recorded.ssh, key) for key in _LOG_IN
    ):  # the seed's state has secrets, lbagent's has the path of a key file
        settings = {key: value for key, value in settings.items() if key not in _LOG_IN}
    return replace(recorded, ssh=replace(recorded.ssh, **settings))


def is_same_host(ssh: SshAccess, other: SshAccess) -> bool:
    """Return whether two kinds of access are to one host: user, port and keys may differ."""
    return (ssh.address, ssh.port) == (other.address, other.port)
