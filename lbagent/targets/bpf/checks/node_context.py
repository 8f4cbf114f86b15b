"""The inputs of a check that runs before the start (offline_context.py) and in the agent (running_context.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from lbagent.config import Config
from lbagent.model.check import Level
from lbagent.model.family import Family
from lbagent.net.snapshot import NodeNetwork


class MissingDevice(Struct, frozen=True):
    """A word of --device without a device."""

    name: str
    problem: str
    new_name: str = ""  # of the device that had this name
    level: Level = Level.WARNING
    exit_code: int = 1


class ShortBackend(Struct, frozen=True):
    """A remote backend whose SNAT ports are nearly all held."""

    name: str  # address, port and protocol
    address: bytes
    flows: int
    sources: tuple[bytes, ...]  # the source addresses that it has ports of
    services: tuple[str, ...] = ()  # where known


class NodeContext(Protocol):
    """A node before the start, or with its agent."""

    @property
    def config(self) -> Config:
        """The settings."""

    @property
    def network(self) -> NodeNetwork | None:
        """A snapshot of the kernel's network; None where it cannot be read."""

    @property
    def pins(self) -> Path:
        """The folder of the pins."""

    @property
    def has_private_pins(self) -> bool:
        """Whether only this mount namespace has the mount of the pins."""

    @property
    def has_socket_programs(self) -> bool:
        """Whether the node's own processes reach Services by socket programs."""

    @property
    def forwarding_families(self) -> Collection[Family]:
        """The families whose packets the kernel must forward."""

    @property
    def devices(self) -> Sequence[str]:
        """The devices that have programs, or get them at the start, with those of pods."""

    @property
    def snat_addresses(self) -> Iterable[bytes]:
        """The addresses of --snat-address."""

    def missing_devices(self) -> Iterable[MissingDevice]:
        """Return the words of --device without a device."""

    def short_backends(self) -> Iterable[ShortBackend]:
        """Return the remote backends that are short of SNAT ports."""
