"""The configuration of provider `fake`: YAML to checked records, or one message with line and field."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import fields

from lbagent.cloud.provider_api.provider_records import Ingress, IngressPort
from lbagent.model.address import parse_ip
from lbagent.pools.field_checks import FieldChecks, only_document
from lbagent.textfile.field_path import FieldPath

CONFIG = "--config"  # placeholder for the file's name
OPS = ("ensure", "update", "delete")
MODES = ("", "VIP", "Proxy")
MAX_S = 3600.0
DEFAULT_STATUS = (Ingress(ip="198.51.100.1"),)


class Failure(Struct, frozen=True):
    """A call that fails: `times` None is without limit, `service` '' is every Service."""

    op: str
    service: str = ""
    times: int | None = None
    error: str = ""
    retry_after_s: float | None = None
    implemented_elsewhere: bool = False


class FakeConfig(Struct, frozen=True):
    """A checked configuration; `delay_s` is by call."""

    record: str = ""
    status: tuple[Ingress, ...] = DEFAULT_STATUS
    fail: tuple[Failure, ...] = ()
    delay_s: Mapping[str, float] = {}


class _PortEntry(Struct, forbid_unknown_fields=True):
    port: int
    protocol: str = "TCP"
    error: str = ""


class _IngressEntry(Struct, forbid_unknown_fields=True, rename="camel"):
    ip: str = ""
    hostname: str = ""
    ip_mode: str = ""
    ports: list[_PortEntry] = field(default_factory=list)


class _FailEntry(Struct, forbid_unknown_fields=True, rename="camel"):
    op: str
    service: str = ""
    times: int | None = None
    error: str = ""
    retry_after_seconds: float | None = None
    implemented_elsewhere: bool = False


class _FileEntry(Struct, forbid_unknown_fields=True, rename="camel"):
    record: str = ""
    status: list[_IngressEntry] | None = None
    fail: list[_FailEntry] = field(default_factory=list)
    delay_seconds: dict[str, float] = field(default_factory=dict)


_KEYS = {each.encode_name for shape in (_FileEntry, _FailEntry, _IngressEntry, _PortEntry) for each in fields(shape)}


def read_fake_config(text: str) -> FakeConfig:
    """Read the text of a configuration. Raises ConfigError."""
    checks = FieldChecks(text, CONFIG)
    entry = checks.converted(only_document(text, CONFIG), _FileEntry, _KEYS)
    status: tuple[Ingress, ...] = DEFAULT_STATUS
    if entry.status is not None:
        status = tuple(_ingress(each, checks, ("status", index)) for index, each in enumerate(entry.status))
    failures = tuple(_failure(each, checks, ("fail", index)) for index, each in enumerate(entry.fail))
    for op, seconds in entry.delay_seconds.items():
        _check_op(op, checks, ("delaySeconds", op))
        if not 0 <= seconds <= MAX_S:
            checks.refuse(("delaySeconds", op), f"{seconds:g} is not in 0-{MAX_S:g}")
    return FakeConfig(entry.record, status, failures, entry.delay_seconds)


def _ingress(entry: _IngressEntry, checks: FieldChecks, at: FieldPath) -> Ingress:
    if bool(entry.ip) == bool(entry.hostname):
        checks.refuse(at, "an entry has either ip or hostname")
    if entry.ip:
        checks.value(parse_ip, entry.ip, (*at, "ip"))
    if entry.ip_mode not in MODES:
        checks.refuse((*at, "ipMode"), f"unknown value {entry.ip_mode!r}; one of VIP, Proxy is possible")
    ports = tuple(IngressPort(port.port, port.protocol, port.error) for port in entry.ports)
    return Ingress(entry.ip, entry.hostname, entry.ip_mode, ports)


def _failure(entry: _FailEntry, checks: FieldChecks, at: FieldPath) -> Failure:
    _check_op(entry.op, checks, (*at, "op"))
    if entry.times is not None and entry.times < 1:
        checks.refuse((*at, "times"), f"{entry.times} is not at least 1")
    if entry.retry_after_seconds is not None and not 0 <= entry.retry_after_seconds <= MAX_S:
        checks.refuse((*at, "retryAfterSeconds"), f"{entry.retry_after_seconds:g} is not in 0-{MAX_S:g}")
    if not (entry.error or entry.retry_after_seconds is not None or entry.implemented_elsewhere):
        checks.refuse(at, "it has none of error, retryAfterSeconds, implementedElsewhere")
    return Failure(
        entry.op, entry.service, entry.times, entry.error, entry.retry_after_seconds, entry.implemented_elsewhere
    )


def _check_op(op: str, checks: FieldChecks, at: FieldPath) -> None:
    if op not in OPS:
        checks.refuse(at, f"unknown value {op!r}; one of {', '.join(OPS)} is possible")
