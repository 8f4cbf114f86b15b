"""What a provider would do about one Service: a row of `lbagent cloud plan`."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from lbagent.model.address import format_ip


class Action(StrEnum):
    """The planned action."""

    ENSURE = "ensure"
    DELETE = "delete"
    IGNORE = "ignore"
    REFUSE = "refuse"


class PlannedMapping(Struct, frozen=True):
    """A port mapping of a router."""

    protocol: str
    external_port: int
    internal_port: int
    description: str


class PlannedBalancer(Struct, frozen=True, kw_only=True):
    """A row. `service` is NAMESPACE/NAME, `name` the balancer's name at the provider, `nodes` the targets of its packets."""

    service: str
    action: Action
    name: str = ""
    addresses: tuple[bytes, ...] = ()
    pool: str = ""
    nodes: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    mappings: tuple[PlannedMapping, ...] = ()
    message: str = ""
    has_problem: bool = False  # it keeps or gets less than it requests

    @property
    def is_refused(self) -> bool:
        """Return whether the Service gets less than it requests."""
        return self.action is Action.REFUSE or self.has_problem

    def as_row(self) -> dict[str, Any]:
        """Return the row as `-o json` prints it."""
        return {
            "service": self.service,
            "action": self.action.value,
            "name": self.name,
            "addresses": [format_ip(address) for address in self.addresses],
            "pool": self.pool,
            "mappings": [asdict(each) for each in self.mappings],
            "nodes": list(self.nodes),
            "source_ranges": list(self.source_ranges),
            "message": self.message,
        }
