"""Follows the frames that XDP sent and devices did not take: says which, and has the packets for such a device go by tc."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from lbagent.bpf.run.send_errors import REFUSALS, SendErrorCounter, SendErrors
from lbagent.net.snapshot import Link

INTERVAL_S = 2.0
SHOWN_S = 60.0  # a loss is a problem for so long after the last frame


class SendWatch:
    """`errors` are the counts by device; `refusing` the devices that refuse in deed, whatever their drivers report, and why."""

    def __init__(self, on_refusal: Callable[[], None]) -> None:
        """`on_refusal` is called when one more device has refused."""
        self.errors: Mapping[int, SendErrors] = {}
        self.refusing: dict[int, str] = {}
        self.available = False  # this kernel lets us count
        self._on_refusal = on_refusal
        self._counter = SendErrorCounter()
        self._last: dict[int, float] = {}  # when a device last lost a frame
        self._links: Mapping[int, object] = {}

    async def run(self) -> None:
        """Count periodically."""
        self.available = await asyncio.to_thread(self._counter.start)
        try:
            while self.available:
                await asyncio.sleep(INTERVAL_S)
                self.take(self._counter.read(), time.monotonic())
        finally:
            self._counter.close()

    def take(self, errors: Mapping[int, SendErrors], now: float) -> None:
        """Compare new counts with the last ones."""
        grown = {index: new for index, new in errors.items() if new.frames != self._frames(index)}
        self.errors = errors
        self._last |= dict.fromkeys(grown, now)
        refused = {index: new for index, new in grown.items() if new.errno in REFUSALS and index not in self.refusing}
        self.refusing |= {index: f"it refused frames of XDP: {new.text}" for index, new in refused.items()}
        if refused:
            self._on_refusal()

    def _frames(self, index: int) -> int:
        known = self.errors.get(index)
        return known.frames if known else 0

    def follow(self, what: Mapping[int, object]) -> None:
        """Forget what a device did before it changed. `what` is known of each device, by ifindex."""
        for index in [index for index in self.refusing if what.get(index) != self._links.get(index)]:
            del self.refusing[index]
        self._links = what

    def problems(self, links: Mapping[int, Link], now: float) -> dict[str, str]:
        """Return what devices lost a moment ago, a sentence each, by name."""
        out = {}
        for index, at in self._last.items():
            if now - at < SHOWN_S:
                error, link = self.errors[index], links.get(index)
                why = f" ({error.text})" if error.errno else ""
                name = link.name if link else f"device {index}"
                out[name] = f"{name} did not take {error.frames} frames that XDP sent by it{why}"
        return out
