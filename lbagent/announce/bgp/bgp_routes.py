"""The announcer's interface to BGP: accepts routes at once, and passes them to BIRD in its own task."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from lbagent.announce.bgp.speaker import BgpSpeaker
from lbagent.pools.announcement import BgpSettings

SETTINGS_POLL_INTERVAL_S = 1.0  # no event reports a change of the section or the labels


class BgpSection(NamedTuple):
    """The section `bgp` of the pools file (None: there is none) and the labels of this node, which choose its peers."""

    settings: BgpSettings | None
    labels: Mapping[str, str]


class BgpRoutes:
    """Implements announcer.RouteAnnouncer. `section` returns None until the node's labels are read."""

    def __init__(self, speaker: BgpSpeaker, section: Callable[[], BgpSection | None]) -> None:
        self._speaker, self._section = speaker, section
        self._routes: frozenset[bytes] | None = None
        self._wake = asyncio.Event()

    def set_routes(self, addresses: Collection[bytes]) -> None:
        """Replace the announced routes by these; return at once."""
        self._routes = frozenset(addresses)
        self._wake.set()

    def refusal(self) -> str:
        """Return why no router gets the routes, '' when one does."""
        return self._speaker.refusal()

    def faults(self) -> list[tuple[str, str]]:
        """Return the faults: BIRD or the session, and a sentence."""
        return self._speaker.faults()

    async def run(self) -> None:
        """Pass the routes to BIRD until cancelled; BIRD keeps running."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._speaker.run())
            section: BgpSection | None = None
            routes: frozenset[bytes] | None = None
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), SETTINGS_POLL_INTERVAL_S)
                self._wake.clear()
                now = self._section()
                if now is None:
                    continue
                if now != section:
                    section = now
                    await self._speaker.use_settings(now.settings, now.labels)
                if self._routes is not None and self._routes != routes:
                    routes = self._routes
                    await self._speaker.set_routes(routes)
