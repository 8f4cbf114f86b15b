"""Chains that no frontend leads to any more stay for a while: a packet may be on its way to one."""

from __future__ import annotations

from lbagent.model.family import Family
from lbagent.targets.nftables.chains import Way
from lbagent.targets.nftables.removed_chains import KEPT_S, RemovedChains
from lbagent.targets.nftables.rule_set import RuleSetDiff


def change(*, new: Way | None = None, gone: tuple[str, ...] = ()) -> RuleSetDiff:
    out = RuleSetDiff()
    out.new_chains = dict(new.chains()) if new is not None else {}
    out.gone_chains = list(gone)
    return out


def test_a_chain_goes_when_its_time_is_over() -> None:
    removed, first = RemovedChains(), change(gone=("random4-3",))
    removed.keep(first, 100.0)
    assert first.gone_chains == [], "not with the change that no longer leads to it"
    assert removed.due() == 100.0 + KEPT_S
    assert not removed.expired(99.9 + KEPT_S)
    assert removed.expired(100.0 + KEPT_S).gone_chains == ["random4-3"]
    assert (removed.due(), bool(removed.expired(1e12))) == (None, False)


def test_a_chain_that_has_a_use_again_stays() -> None:
    removed = RemovedChains()
    removed.keep(change(gone=("random4-3", "random4-2")), 100.0)
    removed.keep(change(new=Way(Family.IPV4, 3)), 101.0)
    assert removed.expired(1e12).gone_chains == ["random4-2"]


def test_a_chain_goes_before_those_that_it_leads_to() -> None:
    removed = RemovedChains()
    removed.keep(change(gone=("random4-3",)), 100.0)
    removed.keep(change(gone=("allow-sticky-random4-3", "sticky-random4-3")), 101.0)
    gone = removed.expired(1e12).gone_chains
    assert gone == ["allow-sticky-random4-3", "sticky-random4-3", "random4-3"]
