"""Frontends that were removed are refused for a while."""

from __future__ import annotations

from lbagent.targets.nftables.map_specs import MAPS
from lbagent.targets.nftables.removed_frontends import REFUSED_S, RemovedFrontends
from tests.targets.nftables.made import WEB, row, rule_set

ROW = row("10.96.0.1:80", "10.0.0.1:8080")


def test_a_removed_frontend_is_refused_until_its_time_is_over() -> None:
    rules, removed = rule_set(ROW), RemovedFrontends()
    change = rules.update(WEB, [])
    removed.refuse(change, 100.0)
    ((key, element),) = change.added["frontends4"].items()
    assert (
        MAPS["frontends4"].element_text(key, element)
        == '10.96.0.1 . tcp . 80 comment "default/web http" : goto refused'
    )
    assert removed.due() == 100.0 + REFUSED_S
    assert removed.added_to(rules.elements())["frontends4"] == {key: element}
    assert not removed.expired(100.0)
    assert removed.expired(100.0 + REFUSED_S).deleted == {"frontends4": {key: element}}
    assert removed.due() is None


def test_one_that_comes_back_takes_its_place() -> None:
    rules, removed = rule_set(ROW), RemovedFrontends()
    change = rules.update(WEB, [])
    removed.refuse(change, 100.0)
    back = rules.update(WEB, [ROW])
    removed.refuse(back, 101.0)
    assert back.deleted["frontends4"] == change.added["frontends4"]
    assert removed.due() is None


def test_what_was_refused_or_dropped_already_goes_at_once() -> None:
    for fields in ({}, {"no_local_backend": True}):
        rules, removed = rule_set(row("10.96.0.1:80", **fields)), RemovedFrontends()
        change = rules.update(WEB, [])
        removed.refuse(change, 100.0)
        assert not change.added
