"""Frontends that were removed: for a while their connections are refused. Pure.

The connections of a removed frontend are deleted, and their next packet would leave for wherever the address is routed.
As with bpf, TCP is answered with RST and UDP with port unreachable. New connections are refused, too, until the time is over.
"""

from __future__ import annotations

from lbagent.targets.nftables.chains import REFUSED
from lbagent.targets.nftables.map_specs import Element
from lbagent.targets.nftables.rule_set import Elements, RuleSetDiff

REFUSED_S = 30.0
_MAPS = ("frontends4", "frontends6")


class RemovedFrontends:
    """Elements that refuse, and until when."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, bytes], tuple[Element, float]] = {}

    def refuse(self, change: RuleSetDiff, now: float) -> None:
        """Let a difference refuse what it removes; what comes back takes the place of what refuses."""
        for name in _MAPS:
            deleted, added = change.deleted.get(name, {}), change.added.get(name, {})
            for key in added:
                if known := self._until.pop((name, key), None):
                    change.deleted.setdefault(name, {})[key] = known[0]
            for key, element in deleted.items():
                if key not in added and isinstance(element.value, str) and element.value.startswith("goto "):
                    if element.value == REFUSED:
                        continue
                    refusing = Element(REFUSED, element.comment)
                    self._until[name, key] = refusing, now + REFUSED_S
                    change.added.setdefault(name, {})[key] = refusing

    def expired(self, now: float) -> RuleSetDiff:
        """Return what removes those whose time is over."""
        out = RuleSetDiff()
        for (name, key), (element, until) in list(self._until.items()):
            if until <= now:
                del self._until[name, key]
                out.change(name, key, element, None)
        return out

    def due(self) -> float | None:
        """Return when the next one's time is over."""
        return min((until for _, until in self._until.values()), default=None)

    def forget(self) -> None:
        """Forget all: everything is compared with what is there."""
        self._until.clear()

    def added_to(self, elements: Elements) -> Elements:
        """Return the elements with those that refuse."""
        for (name, key), (element, _) in self._until.items():
            elements[name].setdefault(key, element)
        return elements
