"""What the announcer asks of the rest of the agent, and what announces by routes in its place."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from lbagent.model.state import State
from lbagent.net.snapshot import NodeNetwork
from lbagent.objects.records import ObjectSnapshot


class RouteAnnouncer(Protocol):
    """What announces addresses by routes."""

    def set_routes(self, addresses: Collection[bytes]) -> None:
        """Announce exactly these from now on; returns at once."""

    def refusal(self) -> str:
        """Return why no router is told of the routes, '' when one is."""

    def faults(self) -> list[tuple[str, str]]:
        """Return what is wrong: with what, and a sentence."""


class NodeView(NamedTuple):
    """What the announcer asks of the rest of the agent; each is called when it is needed.

    `objects` gives None while a source has not given its list: what an earlier agent announced is kept then. `attached` are the
    names of devices with programs, `carriers` the devices by which frames can leave. `state` is what the maps hold; `is_settled`:
    all that was resolved is in it.
    """

    objects: Callable[[], ObjectSnapshot | None]
    network: Callable[[], NodeNetwork]
    attached: Callable[[], Collection[str]]
    carriers: Callable[[], Collection[int]]
    state: Callable[[], State]
    is_settled: Callable[[], bool]
