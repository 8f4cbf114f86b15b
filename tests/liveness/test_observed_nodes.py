"""Which nodes an observer misses: 2 s without any answer, each kind of question unanswered, and never when it is cut off itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbagent.liveness.observed_nodes import Attempt, ObservedNodes

TICK = 0.1
KERNEL = (Attempt.ICMP, Attempt.TCP)
Answers = Callable[[str, Attempt, float], bool]


class Rig:
    """An observer with a question every 0.4 s, as the agent has, over a network that `answers` describes."""

    def __init__(self, *names: str, answers: Answers = lambda *_: True, suspected: tuple[str, ...] = ()) -> None:
        self.now = 100.0
        self.observed = ObservedNodes(self.now)
        self.observed.use(names, suspected)
        self.answers = answers
        self.steps = 0

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            self.steps += 1
            self.observed.look(self.now)
            if self.steps % 4 == 0:
                self._ask()

    def _ask(self) -> None:
        for name in list(self.observed.names):
            kinds = [Attempt.ECHO, *(KERNEL if self.observed.is_doubtful(name, self.now) else ())]
            for kind in kinds:
                self.observed.asked(name, kind, self.now)
            for kind in kinds:
                if self.answers(name, kind, self.now):
                    self.observed.answered(name, kind, self.now)

    def until(self, condition: Callable[[], bool], at_most: float) -> float:
        start = self.now
        while not condition():
            assert self.now - start < at_most, "too late"
            self.run(TICK)
        return self.now - start


def dies(*names: str) -> Answers:
    return lambda name, _kind, _now: name not in names


def test_a_silent_node_is_suspected_after_two_seconds() -> None:
    rig = Rig("a", "b", "c")
    rig.run(5)
    rig.answers = dies("a")
    took = rig.until(lambda: rig.observed.suspected() == {"a"}, 3)
    assert 1.5 < took < 2.3  # 2 s from its last answer, which came up to 0.4 s before
    assert set(rig.observed.missed()) == {"a"}


@pytest.mark.parametrize("alive", [Attempt.ECHO, *KERNEL])
def test_any_answer_keeps_it_alive(alive: Attempt) -> None:
    rig = Rig("a", "b", "c")
    rig.run(5)
    rig.answers = lambda name, kind, _now: name != "a" or kind is alive
    rig.run(60)
    assert not rig.observed.suspected()


@pytest.mark.parametrize("left_out", list(Attempt))
def test_it_is_not_missed_before_each_kind_of_question_went_unanswered(left_out: Attempt) -> None:
    observed = ObservedNodes(0.0)
    observed.use(["a"])
    observed.answered("a", Attempt.ECHO, 0.0)
    for at in range(1, 80):
        now = at * TICK
        for kind in Attempt:
            if kind is not left_out:
                observed.asked("a", kind, now)
        observed.look(now)
    assert not list(observed.missed())
    observed.asked("a", left_out, 8.0)
    observed.look(8.4)
    assert not list(observed.missed()), "the question is too new"
    observed.look(8.6)
    assert list(observed.missed()) == ["a"]


def test_which_agents_do_not_answer() -> None:
    """The kernel's answers are none of the agent; while this process was stopped no answer was missed."""
    rig = Rig("a", "b", "c")
    rig.run(5)
    assert not rig.observed.without_agent(rig.now)
    rig.answers = lambda name, kind, _now: name != "a" or kind is not Attempt.ECHO
    took = rig.until(lambda: rig.observed.without_agent(rig.now) == {"a"}, 3)
    assert 1.5 < took < 2.3
    assert not rig.observed.suspected()
    rig.now += 30.0
    rig.observed.look(rig.now)
    assert not rig.observed.without_agent(rig.now)
    rig.answers = dies()
    rig.run(10)
    assert not rig.observed.without_agent(rig.now)


def test_a_node_that_never_answered_is_not_missed() -> None:
    rig = Rig("a", "b", answers=dies("a"))
    rig.run(60)
    assert not list(rig.observed.missed())


def test_it_returns_after_two_seconds_of_answers() -> None:
    rig = Rig("a", "b", "c")
    rig.run(5)
    rig.answers = dies("a")
    rig.run(10)
    assert rig.observed.suspected() == {"a"}
    rig.answers = dies()
    took = rig.until(lambda: not rig.observed.suspected(), 4)
    assert 2.0 <= took < 2.6


def test_single_answers_are_no_return() -> None:
    rig = Rig("a", "b", "c")
    rig.run(5)
    rig.answers = dies("a")
    rig.run(10)
    rig.answers = lambda name, _kind, now: name != "a" or int(now) % 3 == 0  # a second of answers, two without
    rig.run(60)
    assert rig.observed.suspected() == {"a"}


def test_an_observer_that_is_cut_off_suspects_no_node() -> None:
    rig = Rig("a", "b", "c", "d")
    rig.run(5)
    rig.answers = lambda *_: False
    rig.run(60)
    assert set(rig.observed.missed()) == {"a", "b", "c", "d"}
    assert not rig.observed.suspected()
    assert rig.observed.is_cut_off


@given(st.integers(3, 9), st.data())
@settings(deadline=None, max_examples=40)
def test_a_suspicion_needs_a_majority_of_the_others(count: int, data: st.DataObject) -> None:
    names = [f"n{number}" for number in range(count)]
    silent = data.draw(st.sets(st.sampled_from(names), min_size=1))
    rig = Rig(*names)
    rig.run(3)
    rig.answers = dies(*silent)
    rig.run(5)
    others, reached = count - 1, count - len(silent)
    assert rig.observed.suspected() == (silent if 2 * reached > others else set())


def test_a_suspicion_stays_when_this_node_is_cut_off_later() -> None:
    rig = Rig("a", "b", "c")
    rig.run(5)
    rig.answers = dies("a")
    rig.run(5)
    rig.answers = lambda *_: False
    rig.run(10)
    assert rig.observed.suspected() == {"a"}


def test_a_stopped_agent_blames_no_other_node() -> None:
    """Its timers come late, and answers of meanwhile are lost: their silence counts from the moment on when it runs again."""
    rig = Rig("a", "b", "c")
    rig.run(5)
    rig.now += 60.0
    rig.run(1.9)
    assert not list(rig.observed.missed())
    rig.answers = dies("a")
    rig.now += 60.0
    assert rig.until(lambda: rig.observed.suspected() == {"a"}, 4) > 1.9


@given(st.lists(st.floats(0.02, 30.0), min_size=5, max_size=60))
@settings(deadline=None)
def test_a_node_that_answers_is_never_missed_however_late_this_agent_runs(pauses: list[float]) -> None:
    observed, now = ObservedNodes(0.0), 0.0
    observed.use(["a", "b"])
    for pause in pauses:
        now += pause
        observed.look(now)
        assert not list(observed.missed())
        for kind in Attempt:
            for name in ("a", "b"):
                observed.asked(name, kind, now)
                observed.answered(name, Attempt.ECHO, now)


def test_after_a_restart_a_suspected_node_stays_suspected_until_it_answers() -> None:
    rig = Rig("a", "b", "c", answers=dies("a"), suspected=("a",))
    rig.run(30)
    assert rig.observed.suspected() == {"a"}
    rig.answers = dies()
    rig.run(3)
    assert not rig.observed.suspected()


def test_a_node_that_leaves_the_cluster_is_forgotten() -> None:
    rig = Rig("a", "b", "c")
    rig.run(3)
    rig.answers = dies("a")
    rig.run(5)
    rig.observed.use(["b", "c"])
    assert not rig.observed.suspected()
    rig.observed.answered("a", Attempt.ECHO, rig.now)  # a late answer
    rig.observed.use(["a", "b", "c"])
    rig.run(10)
    assert not rig.observed.suspected(), "it counts as new"
