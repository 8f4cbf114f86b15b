"""Running collected tests by hand, in a child: which mutants or places each test reaches, and whether a set of tests passes."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from _pytest.runner import call_and_report

SLACK_S, SLACK_FACTOR = (
    30.0,
    20,
)  # seconds of processor time: a test may take so much longer with a mutant, and load programs
CHEAP_S = 0.6  # a module whose slowest test takes longer has programs of its own to load
BUSY = 20  # factor for the wall clock: other processes use the processors too


@dataclass(frozen=True)
class Survey:
    """What a test did without any mutant. `reached` are switches or places."""

    passed: bool
    seconds: float
    reached: frozenset[int]


@dataclass(frozen=True)
class Result:
    """Whether a set of tests passed, and which one did not. `refused`: one whose own programs the verifier did not take."""

    failed: str = ""
    error: str = ""
    refused: str = ""


@dataclass
class Surveys:
    """All tests that pass, with what they reach."""

    items: dict[str, pytest.Item]
    found: dict[str, Survey] = field(default_factory=dict)
    killers: dict[tuple[str, str], int] = field(default_factory=dict)  # how often a test killed a mutant of a file

    def add(self, found: dict[str, Survey]) -> None:
        """Take the results of a child."""
        self.found.update(found)

    @property
    def failing(self) -> list[str]:
        """The tests that fail without a mutant."""
        return [name for name, survey in self.found.items() if not survey.passed]

    def tests_of(self, path: str, reached: int | None) -> list[str]:
        """Return the tests that come there (None: all), those that killed other mutants of the file first.

        Then the modules whose fixtures cost little: one test of each function, the fastest first, then a second of each, as cases of one
        function mostly see the same mutants. The other modules one by one: fixtures are created again when a test of another module comes between.
        """
        names = [
            name
            for name, survey in self.found.items()
            if survey.passed and (reached is None or reached in survey.reached)
        ]
        names.sort(key=lambda name: self.found[name].seconds)
        costs = self._module_costs()
        turns: Counter[str] = Counter()
        keys: dict[str, tuple[object, ...]] = {}
        for name in names:
            module, function = name.split("::", maxsplit=1)[0], name.split("[", maxsplit=1)[0]
            cost = costs[module] if costs[module] > CHEAP_S else 0.0
            keys[name] = (-self.killers.get((path, name), 0), cost, module if cost else "", turns[function])
            turns[function] += 1
        return sorted(names, key=lambda name: keys[name])

    def _module_costs(self) -> dict[str, float]:
        """Return how long the slowest test of each module took, seconds: the one that made the fixtures of all."""
        out: dict[str, float] = {}
        for name, survey in self.found.items():
            module = name.split("::", maxsplit=1)[0]
            out[module] = max(out.get(module, 0.0), survey.seconds)
        return out

    def killed(self, path: str, name: str) -> None:
        """Note that a test killed a mutant of a file."""
        self.killers[path, name] = self.killers.get((path, name), 0) + 1

    def seconds(self, names: Iterable[str]) -> float:
        """Return how long these tests may take with a mutant, by the wall clock."""
        return BUSY * (SLACK_S + sum(self.limit(name) for name in names))

    def limit(self, name: str) -> float:
        """Return how much processor time a test may take with a mutant, seconds."""
        return SLACK_S + SLACK_FACTOR * self.found[name].seconds


Take = Callable[[], frozenset[int]]  # returns the switches or places that were reached since the last call


def survey(items: Sequence[pytest.Item], take: Take, note: Callable[[str, Survey], None]) -> dict[str, Survey]:
    """Run the tests; `note` gets each result at once."""
    out = {}
    take()
    for index, item in enumerate(items):
        began = time.monotonic()
        report = _run(item, items[index + 1] if index + 1 < len(items) else None)
        passed = report is None
        out[item.nodeid] = Survey(passed, time.monotonic() - began, take())
        note(item.nodeid, out[item.nodeid])
    return out


def attempt(items: Sequence[pytest.Item], limits: Callable[[str], float], patience_s: float = 0.0) -> Result:
    """Run the tests up to the first one that fails. SIGPROF ends the process when one takes more processor time than its limit,
    SIGALRM when it waits for something that does not come.

    After `patience_s` seconds of processor time (0: never) no further test is begun: as if all of them passed.
    A test that loads programs with its own settings gives no result if the verifier refuses them: other mutants in the build may be the reason.
    """
    refused = ""
    for index, item in enumerate(items):
        if patience_s and time.process_time() > patience_s:
            _end(item)
            break
        signal.setitimer(signal.ITIMER_PROF, limits(item.nodeid))
        signal.setitimer(signal.ITIMER_REAL, BUSY * limits(item.nodeid))
        error = _run(item, items[index + 1] if index + 1 < len(items) else None)
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        if error is not None and "VerifierError" in error:
            refused = refused or item.nodeid
        elif error is not None:
            _end(item)
            return Result(item.nodeid, error)
    return Result(refused=refused)


def _run(item: pytest.Item, following: pytest.Item | None) -> str | None:
    """Run one test; return its message if it failed."""
    item.session._setupstate  # noqa: B018 - fails early if pytest renames it
    if hasattr(item, "_initrequest"):
        item._initrequest()
    error = None
    report: Any = call_and_report(item, "setup", log=False)
    if report.passed:
        report = call_and_report(item, "call", log=False)
    error = str(report.longrepr) if report.failed else None
    ending: Any = call_and_report(item, "teardown", log=False, nextitem=following)
    return error or (str(ending.longrepr) if ending.failed else None)


def _end(item: pytest.Item) -> None:
    """Take down the fixtures that were kept for the test that would have followed."""
    item.session._setupstate.teardown_exact(None)
