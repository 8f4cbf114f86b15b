"""What a check looks at that runs both before the start (offline_context.py) and in the agent (running_context.py)."""

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
    """A word of --device for which there is no device."""

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
    services: tuple[str, ...] = ()  # as far as they are known


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
        """Whether the pins are on a mount that this mount namespace alone has."""

    @property
    def has_socket_programs(self) -> bool:
        """Whether the node's own processes reach Services by socket programs."""

    @property
    def forwarding_families(self) -> Collection[Family]:
        """The families whose packets the kernel must forward."""

    @property
    def devices(self) -> Sequence[str]:
        """The devices that have programs, or get them at the start, those of pods too."""

    @property
    def snat_addresses(self) -> Iterable[bytes]:
        """The addresses of --snat-address."""

    def missing_devices(self) -> Iterable[MissingDevice]:
        """Return what --device names and what is not there."""

    def short_backends(self) -> Iterable[ShortBackend]:
        """Return the remote backends that are short of SNAT ports."""


def sysctl(name: str) -> str:
    """Return a value below /proc/sys/net; '' where there is none (the family is not there, or the device went)."""
    try:
        return Path("/proc/sys/net", name).read_text(encoding="ascii").strip()
    except OSError:
        return ""
