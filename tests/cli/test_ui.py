"""`lbagent ui`: the page by the agent's socket; only its paths; the agent that leaves and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lbagent.targets.data_plane import Counters
from tests.api.serving import Agent, served
from tests.api.test_status_page import CELLS, opened
from tests.cli.conftest import Run
from tests.lab.chromium import Chromium
from tests.lab.netns import Stopwatch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


@pytest.fixture
def url(path: Path) -> Iterator[str]:
    """The URL that a running `lbagent ui` prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lbagent", "ui", "--listen", "127.0.0.1:0", "--ui-host", "lb.example.org"],
        env={**os.environ, "LBAGENT_SOCKET": str(path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    process.stdout.close()


def asked(url: str, target: str, method: str = "GET", host: str = "localhost") -> tuple[int, str]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.request(method, target, headers={"Host": host})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_only_the_page_and_its_requests(path: Path, url: str) -> None:
    agent = Agent()
    with served(agent, path):
        assert asked(url, "/")[1].startswith("<!doctype html>")
        status, text = asked(url, "/v1/summary")
        assert (status, json.loads(text)["generation"]) == (200, 3)
        assert len(json.loads(asked(url, "/v1/summary?rows=1")[1])["services"]) == 4, "it has no query"
        for target in ("/v1/status", "/v1/backends", "/metrics", "/configz", "/v1//summary", "/v1/summary/"):
            assert asked(url, target)[0] == 404
        before = agent.current
        for target in ("/v1/backends/state", "/v1/backends/end-flows"):
            assert asked(url, target, "PUT")[0] == 404
        assert asked(url, "/v1/summary", "PUT")[0] == 405
        assert agent.current is before
        assert asked(url, "/", host="lb.example.org")[0] == 200
        assert asked(url, "/v1/summary", host="evil.example")[0] == 421


def test_without_an_agent(path: Path, url: str) -> None:
    """It serves the page, and one sentence; it continues as soon as there is an agent."""
    assert asked(url, "/")[0] == 200
    status, text = asked(url, "/v1/summary")
    problem = json.loads(text)
    assert (status, problem["exit_code"]) == (502, 5)
    assert problem["error"].startswith(f"no agent answers on unix://{path}: ")
    with served(Agent(), path):
        assert asked(url, "/v1/summary")[0] == 200


def test_a_stopped_agent_keeps_the_page_alive(path: Path, url: str) -> None:
    """A socket that takes connections and answers nothing costs five seconds, and no other request."""
    import socket

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        connection = HTTPConnection(urlsplit(url).netloc, timeout=20)
        connection.request("GET", "/v1/summary")
        began = Stopwatch()
        assert asked(url, "/")[0] == 200
        assert began.s < 3.0
        answer = connection.getresponse()
        assert answer.status == 502
        assert "did not answer within 5 s" in json.loads(answer.read())["error"]
        connection.close()


def test_the_page_continues_over_a_restart_of_the_agent(path: Path, url: str) -> None:
    problem = "document.getElementById('problems').textContent"
    agent: Any = Agent()
    agent.counters = Counters(services={1: (7, 700)})
    with Chromium() as browser:
        with served(agent, path):
            page_of = opened(browser, url)
            page = page_of.__enter__()
        page.wait(f"{problem}.startsWith('no agent answers on unix://')")
        assert page.evaluate(f"({CELLS % 'services'})[0][5]") == "7", "the last value stays"
        agent.counters = Counters(services={1: (9, 900)})
        with served(agent, path):
            page.wait(f"({CELLS % 'services'})[0][5] === '9'")
            assert "no agent" not in page.evaluate(problem)
        page_of.__exit__(None, None, None)


def test_addresses(lb: Run, url: str) -> None:
    taken = urlsplit(url).netloc
    done = lb("ui", "--listen", taken)
    assert done.code == 1
    assert (
        done.err
        == f"error: --listen {taken}: Address already in use; give another address, or end what listens there\n"
    )
    assert lb("ui", "--listen", "9191").code == 2
    assert lb("ui", "--listen", "192.0.2.77:9191").code == 1
