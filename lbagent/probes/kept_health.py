"""The health of a server as a file has it, for the next agent."""

from __future__ import annotations

from msgspec import Struct

from lbagent.model.address import L3n4Addr
from lbagent.probes.checker import Health
from lbagent.probes.health_checks import Key
from lbagent.probes.probe_spec import ProbeSpec


class KeptHealth(Struct, frozen=True):
    """The health of a server: `address` as ADDRESS:PORT/TCP."""

    address: str
    check: ProbeSpec
    up: bool
    since: float
    last: str

    @classmethod
    def of(cls, key: Key, health: Health) -> KeptHealth:
        """Return the health of a server in the form of a file."""
        server, check = key
        return cls(server.with_protocol(), check, health.up, health.since, health.last)

    @property
    def key(self) -> Key:
        """The server and its check. Raises ValueError for an address that is none."""
        return L3n4Addr.parse(self.address), self.check

    @property
    def health(self) -> Health:
        """The health of the server."""
        return Health(self.up, self.since, self.last, not self.up)
