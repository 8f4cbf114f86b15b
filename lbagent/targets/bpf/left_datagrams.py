"""Conversations over UDP that another proxy translates: with `new-flows: syn` the programs leave them to it.

A SYN begins a connection, but no datagram shows that it begins a conversation. So lb4_left and lb6_left have the conversations that
connection tracking translates, by the keys that their flows would have, and when connection tracking forgets each: from then on it
is the programs', also where no agent runs. They are read before the programs take what is new, and then about once a second. A flow
that the programs have continues, whatever the map has.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from lbagent.errors import LbError
from lbagent.maps.flow_hash import FlowEnd
from lbagent.maps.flow_reader import key_between
from lbagent.maps.layout import PathL4
from lbagent.maps.map_names import family_map
from lbagent.model.family import Family
from lbagent.net.conntrack import Conntrack

if TYPE_CHECKING:
    from lbagent.maps.lbmaps import LBMaps

log = logging.getLogger(__name__)
NS = 1_000_000_000
POLL_S = 1.0
MOST = 0.02  # of the time that reading may take
_UNTIL = struct.Struct("=Q")  # ns of CLOCK_MONOTONIC


class LeftDatagrams:
    """Keeps lb4_left and lb6_left. One thread at a time."""

    def __init__(self, maps: LBMaps) -> None:
        self._maps = maps
        self._problem = ""
        self._duration_s = 0.0

    def refresh(self) -> None:
        """Bring the maps to what connection tracking translates. Blocks.

        What cannot be read or written is logged once, and leaves the maps as they are: those conversations select a backend again.
        """
        began = time.monotonic()
        try:
            self._refresh()
        except (LbError, OSError) as error:
            self._report(str(error))
        else:
            self._report("")
        self._duration_s = time.monotonic() - began

    async def run(self, is_needed: Callable[[], bool]) -> None:
        """Refresh the maps while the programs read them, and empty them when they do not any more."""
        was_needed = True
        while True:
            if is_needed():
                was_needed = True
                await asyncio.to_thread(self.refresh)
            elif was_needed:
                was_needed = False
                with suppress(LbError):
                    await asyncio.to_thread(self._forget)
            await asyncio.sleep(max(POLL_S, self._duration_s / MOST))

    def _refresh(self) -> None:
        wanted: dict[Family, dict[bytes, bytes]] = {family: {} for family in Family}
        now = time.monotonic_ns()
        with closing(Conntrack()) as conntrack:
            for found in conntrack.datagrams():
                client, frontend = (FlowEnd(end.address, end.port) for end in (found.client, found.frontend))
                until = _UNTIL.pack(now + found.left_s * NS)
                wanted[found.frontend.family][key_between(client, frontend, PathL4.UDP)] = until
        for family, untils in wanted.items():
            name = family_map(family, "left")
            self._maps.delete_many(name, [key for key, _ in self._maps.items(name) if key not in untils])
            self._maps.put_many(name, list(untils.items()))

    def _forget(self) -> None:
        for family in Family:
            name = family_map(family, "left")
            self._maps.delete_many(name, [key for key, _ in self._maps.items(name)])

    def _report(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.warning(
                "conversations over UDP that another proxy translates may change their backend",
                extra={"error": problem},
            )
        self._problem = problem
