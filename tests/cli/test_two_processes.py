"""Texts of two processes come in order; neither process outlives the other."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lbagent.cli import two_processes
from lbagent.cli.two_processes import in_two_processes
from lbagent.errors import LbError

TEXTS = ["a" * 3_000_000, "", "b", "", "", "ü" * 5, "c"]


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_processes.os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.parametrize("count", range(len(TEXTS) + 1))
def test_texts_come_in_turns(count: int) -> None:
    found = list(in_two_processes(lambda part, parts: iter(TEXTS[:count][part::parts]), "texts"))
    assert found == TEXTS[:count]


def test_another_process_makes_the_second_half() -> None:
    pids = list(in_two_processes(lambda *_: iter([str(os.getpid())]), "pids"))
    assert pids[0] == str(os.getpid()) != pids[1]


def test_without_a_second_processor_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_processes.os, "sched_getaffinity", lambda _: {3})
    found = list(in_two_processes(lambda part, parts: iter([str(os.getpid()), *TEXTS[part::parts]]), "texts"))
    assert found == [str(os.getpid()), *TEXTS]


def test_a_failure_of_the_other_process_is_an_error() -> None:
    def texts(part: int, parts: int) -> Iterator[str]:
        yield f"{part} of {parts}"
        if part:
            raise OSError

    with pytest.raises(LbError, match="second half of the flows"):
        list(in_two_processes(texts, "the flows"))


def test_the_other_process_ends_with_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle of a text that no one reads."""
    fork, forked = os.fork, []

    def noted_fork() -> int:
        forked.append(fork())
        return forked[-1]

    monkeypatch.setattr(two_processes.os, "fork", noted_fork)
    made = in_two_processes(lambda *_: iter(["x" * 3_000_000] * 5), "texts")
    next(made)
    made.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], os.WNOHANG)
