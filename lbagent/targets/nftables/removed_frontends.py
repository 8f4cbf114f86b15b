"""Frontends that lost their connections: for a while these are answered. Pure.

The connections of a removed frontend are deleted, and their next packet would leave for wherever the address is routed.
As with bpf, TCP is answered with RST and UDP with port unreachable. New connections are refused, too, until the time is over.
Where the last backend is gone and new connections are dropped (traffic policy Local), TCP connections are answered alike.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from lbagent.targets.nftables.chains import DROPPED, ENDED, REFUSED
from lbagent.targets.nftables.map_specs import Element
from lbagent.targets.nftables.rule_set import Elements, RuleSetDiff

ANSWERED_S = 30.0
_INSIDE = {"frontends4": "internal4", "frontends6": "internal6"}  # where a frontend has its other scope
_MAPS = (*_INSIDE, *_INSIDE.values())


class _Answering(NamedTuple):
    """The element that is in the table, and the one that follows at a time (monotonic seconds)."""

    element: Element
    then: Element | None
    until: float


class RemovedFrontends:
    """Elements that answer, and until when."""

    def __init__(self) -> None:
        self._answering: dict[tuple[str, bytes], _Answering] = {}
        self.left_alone: Collection[bytes] = ()  # keys of frontends that end without an answer

    def answer(self, change: RuleSetDiff, now: float) -> None:
        """Let a difference answer the connections that it ends; what is different again takes the place of what answers."""
        for name in _MAPS:
            deleted, added = change.deleted.get(name, {}), change.added.get(name, {})
            for key in {*deleted, *added}:
                if known := self._answering.pop((name, key), None):
                    change.deleted.setdefault(name, {})[key] = known.element
            for key, element in change.deleted.get(name, {}).items():
                if key in self.left_alone:
                    continue
                if answering := _answering(change, name, key, element, added.get(key)):
                    self._answering[name, key] = _Answering(answering, added.get(key), now + ANSWERED_S)
                    change.added.setdefault(name, {})[key] = answering

    def expired(self, now: float) -> RuleSetDiff:
        """Return what ends those whose time is over."""
        out = RuleSetDiff()
        for (name, key), (element, then, until) in list(self._answering.items()):
            if until <= now:
                del self._answering[name, key]
                out.change(name, key, element, then)
        return out

    def due(self) -> float | None:
        """Return when the next one's time is over."""
        return min((each.until for each in self._answering.values()), default=None)

    def forget(self) -> None:
        """Forget all: everything is compared with what is there."""
        self._answering.clear()

    def in_force(self, elements: Elements) -> Elements:
        """Return wanted elements with those that answer in their places."""
        for (name, key), (element, then, _) in self._answering.items():
            if elements[name].get(key) == then:
                elements[name][key] = element
        return elements


def _answering(change: RuleSetDiff, name: str, key: bytes, old: Element, new: Element | None) -> Element | None:
    """Return the element that answers for a while; None: it had no connections, or keeps them."""
    if new is not None:
        return Element(ENDED, new.comment) if new.value == DROPPED and _had_backends(old) else None
    if name not in _INSIDE:
        return None  # its clients go to the other scope
    inside = change.deleted.get(_INSIDE[name], {}).get(key)
    return Element(REFUSED, old.comment) if _had_backends(old) or (inside and _had_backends(inside)) else None


def _had_backends(element: Element) -> bool:
    value = element.value
    return isinstance(value, str) and value.startswith("goto ") and value not in (REFUSED, ENDED)
