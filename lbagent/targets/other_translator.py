"""Renderers without an agent: no two data planes translate packets of one family.

What is in force is read from the kernel: it stays when the process that wrote it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from lbagent.config import Config
from lbagent.errors import Conflict
from lbagent.model.family import Family
from lbagent.model.service import SVC
from lbagent.render.renderer_names import SHIPPED

OTHERS = {"bpf": "nftables", "nftables": "bpf"}


class OtherTranslator:
    """Looks at the other data plane before the first frontend of a family is written."""

    def __init__(self, name: str, families: frozenset[Family], config: Config) -> None:
        self._name = name
        self._families = families  # that this data plane serves
        self._config = config
        self._in_force: frozenset[Family] = frozenset()  # of which this data plane has frontends

    async def require_none(self, rows: Iterable[SVC]) -> None:
        """Raise Conflict where the other data plane has frontends of a family that these rows begin."""
        other = OTHERS[self._name]
        begun = self._of(rows) - self._in_force
        if not begun or not SHIPPED[other]:
            return
        both, what = await asyncio.to_thread(_in_force, import_module(SHIPPED[other]), self._config, begun)
        if both:
            versions = " and ".join(f"IPv{family.digit}" for family in both)
            raise Conflict(
                f"renderer {self._name}: the data plane {other} is in force ({what}), and both would translate each packet of"
                f" {versions}; nothing was changed; end what serves with {other} and run `lbagent cleanup`, or divide the"
                " families: family=ipv4 and family=ipv6"
            )

    def wrote(self, rows: Iterable[SVC]) -> None:
        """Take note of what is in force now."""
        self._in_force = self._of(rows)

    def _of(self, rows: Iterable[SVC]) -> frozenset[Family]:
        return frozenset(row.frontend.family for row in rows) & self._families


def _in_force(module: Any, config: Config, begun: frozenset[Family]) -> tuple[list[Family], str]:
    """Return which of the families it translates, and where. Blocks, and has an event loop of its own."""
    both = sorted(begun & module.translated_families(config))
    return both, module.translates(config) if both else ""
