"""The inventory of provider `baremetal`: YAML to checked records, or one message with line and field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import fields

from lbagent.model.address import format_ip, parse_ip
from lbagent.pools.field_checks import FieldChecks, only_document
from lbagent.textfile.field_path import FieldPath
from lbagent.value_errors import shown

CONFIG = "--config"  # placeholder for the file's name
TABLE_MAIN = 254
PROTOCOL = 76  # of lbagent's routes: a number that is free in iproute2's rt_protos
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


class Machine(Struct, frozen=True):
    """A machine, checked. Addresses in text, as the kernel writes them."""

    name: str
    id: str
    type: str
    internal: tuple[str, ...]
    external: tuple[str, ...]
    host_name: str
    zone: str
    region: str
    labels: Mapping[str, str]
    powered: bool


class RouteSettings(Struct, frozen=True):
    """The kernel's routing table for the routes, and their protocol number."""

    table: int = TABLE_MAIN
    protocol: int = PROTOCOL


class Inventory(Struct, frozen=True):
    """A checked inventory; `routes` None: no routes are created."""

    machines: tuple[Machine, ...]
    routes: RouteSettings | None = None


class _MachineEntry(Struct, forbid_unknown_fields=True, rename="camel"):
    name: str
    addresses: list[str]
    external_addresses: list[str] = field(default_factory=list)
    host_name: str = ""
    id: str = ""
    type: str = ""
    zone: str = ""
    region: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    powered: bool = True


class _RoutesEntry(Struct, forbid_unknown_fields=True):
    table: int = TABLE_MAIN
    protocol: int = PROTOCOL


class _FileEntry(Struct, forbid_unknown_fields=True):
    machines: list[_MachineEntry]
    zone: str = ""
    region: str = ""
    routes: _RoutesEntry | None = None


_KEYS = {each.encode_name for shape in (_FileEntry, _MachineEntry, _RoutesEntry) for each in fields(shape)}


def read_inventory(text: str) -> Inventory:
    """Read the text of an inventory. Raises ConfigError."""
    checks = FieldChecks(text, CONFIG)
    entry = checks.converted(only_document(text, CONFIG), _FileEntry, _KEYS)
    if not entry.machines:  # it may be half written: every Node that is not ready would be deleted
        checks.refuse(("machines",), "at least one machine is needed")
    _check_labels(checks, (), zone=entry.zone, region=entry.region)
    machines = [_machine(checks, each, ("machines", index), entry) for index, each in enumerate(entry.machines)]
    for key in ("name", "id"):
        checks.unique([getattr(each, key) for each in machines], lambda index, key=key: ("machines", index, key))  # type: ignore[misc]
    _check_addresses(checks, machines)
    return Inventory(tuple(machines), _routes(checks, entry.routes))


def _machine(checks: FieldChecks, entry: _MachineEntry, at: FieldPath, file: _FileEntry) -> Machine:
    if not NODE_NAME.fullmatch(entry.name):
        checks.refuse((*at, "name"), f"{shown(entry.name)} is not a Node name")
    if not entry.addresses:
        checks.refuse((*at, "addresses"), "at least one address is needed")
    _check_labels(checks, at, type=entry.type, zone=entry.zone, region=entry.region)
    for key, text in entry.labels.items():
        if not LABEL_KEY.fullmatch(key) or not LABEL.fullmatch(text):
            checks.refuse((*at, "labels", key), f"{shown(key)}: {shown(text)} is not a label")
    if "/" in entry.id or not entry.id.isprintable():
        checks.refuse((*at, "id"), f"{shown(entry.id)} is not an id")
    return Machine(
        entry.name,
        entry.id or entry.name,
        entry.type,
        _addresses(checks, entry.addresses, (*at, "addresses")),
        _addresses(checks, entry.external_addresses, (*at, "externalAddresses")),
        entry.host_name,
        entry.zone or file.zone,
        entry.region or file.region,
        entry.labels,
        entry.powered,
    )


def _addresses(checks: FieldChecks, texts: Iterable[str], at: FieldPath) -> tuple[str, ...]:
    return tuple(format_ip(checks.value(parse_ip, text, (*at, index))) for index, text in enumerate(texts))


def _check_addresses(checks: FieldChecks, machines: Iterable[Machine]) -> None:
    """Reject an internal address of two machines: a route with this gateway would be ambiguous."""
    owners: dict[str, str] = {}
    for index, machine in enumerate(machines):
        for place, address in enumerate(machine.internal):
            if (owner := owners.setdefault(address, machine.name)) != machine.name:
                checks.refuse(("machines", index, "addresses", place), f"{address} belongs to {owner} too")


def _check_labels(checks: FieldChecks, at: FieldPath, **texts: str) -> None:
    for key, text in texts.items():
        if not LABEL.fullmatch(text):
            checks.refuse((*at, key), f"{shown(text)} is not a label value")


def _routes(checks: FieldChecks, entry: _RoutesEntry | None) -> RouteSettings | None:
    if entry is None:
        return None
    return RouteSettings(
        checks.between(entry.table, ("routes", "table"), 1, 0xFFFFFFFF),
        checks.between(
            entry.protocol, ("routes", "protocol"), 5, 0xFF
        ),  # 0 to 4 are the kernel's and the administrator's
    )
