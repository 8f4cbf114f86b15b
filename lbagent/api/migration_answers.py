"""The answers about a migration from another proxy, and the request."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class MigrationStatus(Struct, frozen=True):
    """What an agent does beside another proxy. `shadow`: it was started with --shadow; `serves`: its data planes are in force."""

    shadow: bool
    serves: bool
    renderers: list[str]  # words of --renderer; those that would serve, where it does not
    error: str = ""  # why it could not serve, when that was requested last
    is_left: bool = False  # it compares, and keeps flows of its data plane going until they end


class MigrationRequest(Struct):
    """Whether an agent with --shadow serves, and with which words of --renderer ([]: the default)."""

    serves: bool
    renderers: list[str] = []


class MigratingAgent(Protocol):
    """What answers the requests."""

    def status(self) -> MigrationStatus:
        """Return what the agent does."""

    async def request(self, wanted: MigrationRequest) -> MigrationStatus:
        """Start its parts again, as requested; return the state before. Raises LbError."""
