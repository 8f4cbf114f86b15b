"""Chains that no frontend leads to any more: they stay for a while, with their rules. Pure.

A packet has its verdict before it enters the chain. If the chain is emptied in between, the packet comes to its end: it is accepted
without a translation, and connection tracking keeps that for all packets of the connection. On two CPUs of a virtual machine this
was one of 10,000 connections, in 1,000 updates.
"""

from __future__ import annotations

from lbagent.targets.nftables.rule_set import RuleSetDiff

KEPT_S = 10.0  # no packet is on its way so long


class RemovedChains:
    """Chains without a use, and until when they stay."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def keep(self, change: RuleSetDiff, now: float) -> None:
        """Take the chains that go out of a difference; those that come have a use again."""
        for name in change.new_chains:
            self._until.pop(name, None)
        self._until |= dict.fromkeys(change.gone_chains, now + KEPT_S)
        change.gone_chains = []

    def expired(self, now: float) -> RuleSetDiff:
        """Return what removes those whose time is over: each before those that it leads to."""
        out = RuleSetDiff()
        gone = [name for name, until in self._until.items() if until <= now]
        for name in gone:
            del self._until[name]
        out.gone_chains = sorted(gone, key=lambda name: -name.count("-"))
        return out

    def due(self) -> float | None:
        """Return when the next one's time is over."""
        return min(self._until.values(), default=None)

    def forget(self) -> None:
        """Forget all: the table is new, or is compared."""
        self._until.clear()
