"""A served agent and a way to run commands against it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from lbagent.cli.main import run
from tests.api.serving import Agent, served


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that an operator's shell exports."""
    for name in [name for name in os.environ if name.startswith("LBAGENT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def lb(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command in this process."""

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        code = run(arguments)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """An agent behind $LBAGENT_SOCKET."""
    path = tmp_path / "agent.sock"
    monkeypatch.setenv("LBAGENT_SOCKET", str(path))
    agent = Agent()
    with served(agent, path):
        yield agent


@pytest.fixture
def no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent answers on $LBAGENT_SOCKET, and nothing is pinned under $LBAGENT_BPFFS."""
    monkeypatch.setenv("LBAGENT_SOCKET", str(tmp_path / "none.sock"))
    monkeypatch.setenv("LBAGENT_BPFFS", str(tmp_path / "none"))
