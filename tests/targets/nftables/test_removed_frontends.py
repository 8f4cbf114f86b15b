"""Frontends that were removed are refused for a while."""

from __future__ import annotations

import pytest

from lbagent.model.address import Scope
from lbagent.targets.nftables.map_specs import MAPS
from lbagent.targets.nftables.removed_frontends import ANSWERED_S, RemovedFrontends
from tests.targets.nftables.made import WEB, row, rule_set

ROW = row("10.96.0.1:80", "10.0.0.1:8080")


def test_a_removed_frontend_is_refused_until_its_time_is_over() -> None:
    rules, removed = rule_set(ROW), RemovedFrontends()
    change = rules.update(WEB, [])
    removed.answer(change, 100.0)
    ((key, element),) = change.added["frontends4"].items()
    assert (
        MAPS["frontends4"].element_text(key, element)
        == '10.96.0.1 . tcp . 80 comment "default/web http" : goto refused'
    )
    assert removed.due() == 100.0 + ANSWERED_S
    assert removed.in_force(rules.elements())["frontends4"] == {key: element}
    assert not removed.expired(100.0)
    assert removed.expired(100.0 + ANSWERED_S).deleted == {"frontends4": {key: element}}
    assert removed.due() is None


def test_one_that_comes_back_takes_its_place() -> None:
    rules, removed = rule_set(ROW), RemovedFrontends()
    change = rules.update(WEB, [])
    removed.answer(change, 100.0)
    back = rules.update(WEB, [ROW])
    removed.answer(back, 101.0)
    assert back.deleted["frontends4"] == change.added["frontends4"]
    assert removed.due() is None


def test_what_was_refused_or_dropped_already_goes_at_once() -> None:
    for fields in ({}, {"no_local_backend": True}):
        rules, removed = rule_set(row("10.96.0.1:80", **fields)), RemovedFrontends()
        change = rules.update(WEB, [])
        removed.answer(change, 100.0)
        assert not change.added


@pytest.mark.parametrize("scope", list(Scope))
def test_connections_are_answered_where_new_ones_are_dropped(scope: Scope) -> None:
    """Traffic policy Local: the last backend is gone."""
    frontend = "10.96.0.1:80" if scope is Scope.EXTERNAL else "10.96.0.1:80/i"
    name = "frontends4" if scope is Scope.EXTERNAL else "internal4"
    rules, removed = rule_set(row(frontend, "10.0.0.1:8080")), RemovedFrontends()
    served = rules.elements()[name]
    change = rules.update(WEB, [row(frontend, no_local_backend=True)])
    dropped = rules.elements()[name]
    removed.answer(change, 100.0)
    ended = change.added[name]
    assert [each.value for each in ended.values()] == ["goto ended"]
    assert removed.in_force(rules.elements())[name] == ended
    assert not removed.expired(129.9)
    later = removed.expired(130.0)
    assert (later.deleted, later.added) == ({name: ended}, {name: dropped})
    assert removed.in_force(rules.elements())[name] == dropped
    removed.answer(rules.update(WEB, [row(frontend, "10.0.0.1:8080")]), 131.0)
    again = rules.update(WEB, [row(frontend, no_local_backend=True)])
    removed.answer(again, 132.0)
    back = rules.update(WEB, [row(frontend, "10.0.0.1:8080")])
    removed.answer(back, 133.0)
    assert (back.deleted[name], back.added[name], removed.due()) == (ended, served, None)
