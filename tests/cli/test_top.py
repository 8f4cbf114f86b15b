"""`lbagent top`: rates, --batch, and the screen with its keys in a real terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.cli.top_screen import TopScreen, number_text
from lbagent.cli.traffic_rates import rates
from lbagent.targets.data_plane import Counters
from tests.api.serving import Agent, served
from tests.cli.conftest import Run
from tests.lab.terminal import Terminal

WEB, DNS = "10.96.0.10:80/TCP", "[fd00::a]:53/UDP"
TOP = (sys.executable, "-m", "lbagent", "top")


def summary(at: float, web: int | None, dns: int, drops: int = 0) -> dict[str, Any]:
    """Return a summary in which a packet has 100 bytes, and each tenth one began a flow."""

    def counted(packets: int | None) -> dict[str, Any]:
        return {"packets": packets, "bytes": None if packets is None else 100 * packets}

    def flows(packets: int | None) -> int | None:
        return None if packets is None else packets // 10

    reasons = [{"reason": "fwd_new", **counted((web or 0) + dns)}, {"reason": "drop_race", **counted(drops)}]
    return {
        "time": at, "flows": 7,
        "services": [
            {"service": "shop/web", "frontend": WEB, **counted(web), "new_flows": flows(web), "flows": 3},
            {"service": "kube-system/dns", "frontend": DNS, **counted(dns), "new_flows": flows(dns), "flows": None},
        ],
        "backends": [{"backend": "10.0.0.9:8080/TCP", "state": "active", "node": "n1", "flows": 5, **counted(web)}],
        "reasons": [each for each in reasons if each["packets"]],
    }  # fmt: skip


def test_rates() -> None:
    """The busiest first; a packet of 100 bytes has 800 bits."""
    found = rates(summary(10.0, 1000, 0), summary(12.5, 1250, 1000, drops=5))
    assert list(found) == ["interval_s", "total", "services", "backends", "reasons"]
    assert found["interval_s"] == 2.5
    assert found["total"] == {"pps": 502.0, "bps": 401_600.0, "new_flows_ps": 50.0, "flows": 7}
    assert found["services"] == [
        {"service": "kube-system/dns", "frontend": DNS, "pps": 400.0, "bps": 320_000.0, "new_flows_ps": 40.0, "flows": None},
        {"service": "shop/web", "frontend": WEB, "pps": 100.0, "bps": 80_000.0, "new_flows_ps": 10.0, "flows": 3},
    ]  # fmt: skip
    assert found["backends"] == [
        {"backend": "10.0.0.9:8080/TCP", "state": "active", "node": "n1", "pps": 100.0, "bps": 80_000.0, "flows": 5}
    ]
    assert found["reasons"] == [
        {"reason": "fwd_new", "pps": 500.0, "bps": 400_000.0},
        {"reason": "drop_race", "pps": 2.0, "bps": 1600.0},
    ]


def pps_of(found: dict[str, Any]) -> dict[str, float | None]:
    return {row["frontend"]: row["pps"] for row in found["services"]}


def test_no_rate_is_invented() -> None:
    """Nothing for what is not counted, what is new, and a counter that began at 0 again."""
    assert pps_of(rates(summary(0, None, 5), summary(1, None, 5))) == {WEB: None, DNS: 0.0}
    assert pps_of(rates(summary(0, 500, 5), summary(1, 20, 5))) == {WEB: None, DNS: 0.0}
    before = summary(0, 500, 5)
    before["services"] = before["services"][:1]
    assert pps_of(rates(before, summary(1, 510, 500))) == {WEB: 10.0, DNS: None}
    assert rates(summary(1, 1, 1), summary(1, 2, 2))["total"]["pps"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.5, "0.5"), (12, "12"), (999, "999"), (1000, "1.0k"), (34_567, "34.6k"), (345_678, "346k"),
     (1_200_000, "1.2M"), (4e9, "4.0G"), (5e15, "5000T")],
)  # fmt: skip
def test_numbers(value: float | None, text: str) -> None:
    assert number_text(value) == text


def test_keys() -> None:
    screen = TopScreen()
    screen.take(rates(summary(0, 0, 0), summary(1, 100, 300, drops=9)))

    def first_cells() -> list[str]:
        return [line.split()[0].rstrip("*") for line in screen.lines(100, 30)[2:]]

    assert first_cells() == ["SERVICE", "kube-system/dns", "shop/web"]
    assert screen.lines(100, 30)[0] == "lbagent top  pps 409  bps 327k  new flows/s 40  flows 7"
    assert "PPS*" in screen.lines(100, 30)[2]
    for key in "<<":  # to FRONTEND, to SERVICE: texts ascend
        screen.key(key)
    assert "SERVICE*" in screen.lines(100, 30)[2]
    screen.key("<")
    assert "FLOWS*" in screen.lines(100, 30)[2]
    screen.key(">")
    assert "SERVICE*" in screen.lines(100, 30)[2]
    for key in "/WEB":
        screen.key(key)
    assert screen.lines(100, 30)[1] == "filter: WEB_"
    assert first_cells() == ["SERVICE", "shop/web"]
    screen.key("q")
    assert not screen.is_over, "q is a letter of the filter"
    screen.key("\x7f")
    screen.key("\n")
    assert first_cells() == ["SERVICE", "shop/web"]
    screen.key("b")
    assert first_cells() == ["BACKEND"], "the filter holds for each view"
    screen.key("/")
    screen.key("\x1b")
    assert first_cells() == ["BACKEND", "10.0.0.9:8080/TCP"]
    screen.key("d")
    assert first_cells() == ["REASON", "drop_race"], "what was forwarded is no drop"
    screen.key("p")
    before = screen.lines(100, 30)[2:]
    screen.take(rates(summary(0, 0, 0), summary(1, 100, 300, drops=77)))
    assert screen.lines(100, 30)[2:] == before
    assert screen.lines(100, 30)[0].endswith("  paused")
    screen.key("q")
    assert screen.is_over


def test_small_screens_and_hostile_names() -> None:
    screen = TopScreen()
    now = summary(1, 100, 300)
    now["services"][1]["service"] = "a/\x1b[2Jb"
    screen.take(rates(summary(0, 0, 0), now))
    for width, height in ((1, 1), (5, 2), (0, 0), (200, 100)):
        found = screen.lines(width, height)
        assert len(found) <= height
        assert all(len(line) < max(1, width) for line in found)
        assert "\x1b" not in "".join(found)


# --- commands ---


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LBAGENT_SOCKET", str(tmp_path / "top.sock"))
    return tmp_path / "top.sock"


@pytest.fixture
def busy() -> Iterator[Agent]:
    """An agent whose frontend 1 gets some 1,000 packets a second."""
    agent, ended = Agent(), threading.Event()
    began = time.monotonic()

    def count() -> None:
        while not ended.wait(0.01):
            packets = int(1000 * (time.monotonic() - began))
            agent.counters = Counters(
                reasons={"fwd_new": (packets, 100 * packets), "drop_race": (packets // 10, packets)},
                services={1: (packets, 100 * packets), 2: (5, 500)},
                backends={1: (packets, 100 * packets)},
                live_flows={1: 5},
                sessions={"tcp": 5},
            )

    counting = threading.Thread(target=count)
    counting.start()
    time.sleep(0.05)
    yield agent
    ended.set()
    counting.join()


def test_batch(busy: Agent, path: Path, lb: Run) -> None:
    with served(busy, path):
        done = lb("top", "--batch", "-n", "2", "--interval", "0.5", "-o", "json")
        assert (done.code, done.err) == (0, "")
        first, second = map(json.loads, done.out.splitlines())
        for found in (first, second):
            assert list(found) == ["interval_s", "total", "services", "backends", "reasons"]
            assert 0.4 < found["interval_s"] < 5
            assert found["services"][0]["frontend"] == WEB
            assert 700 < found["services"][0]["pps"] < 1300
            assert found["services"][0]["bps"] == pytest.approx(800 * found["services"][0]["pps"], rel=0.01)
            assert found["total"]["flows"] == 5
        text = lb("top", "--batch", "-n", "1", "--interval", "0.3").out.splitlines()
        assert text[0].startswith("pps ")
        assert [line.split()[0] for line in text if line.isupper() or line.startswith(("SERVICE ", "BACKEND ", "REASON "))] == [
            "SERVICE", "BACKEND", "REASON",
        ]  # fmt: skip


def test_refusals(busy: Agent, path: Path, lb: Run) -> None:
    assert lb("top").code == 5, "no agent yet"
    with served(busy, path):
        assert lb("top") == (2, "", "error: top needs a terminal; --batch needs none\n")
        assert lb("top", "-n", "2").code == 2
        assert lb("top", "--batch", "--interval", "0").code == 2
        assert lb("top", "--batch", "-n", "0").code == 2


def test_batch_continues_over_a_restart_of_the_agent(busy: Agent, path: Path) -> None:
    with served(busy, path):
        process = subprocess.Popen(
            [*TOP, "--batch", "--interval", "0.2", "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["interval_s"] < 5
    assert process.stderr.readline().startswith(f"no agent answers on unix://{path}: ")
    time.sleep(1.0)
    with served(busy, path):
        late = [json.loads(process.stdout.readline()) for _ in range(20)]
        away = max(late, key=lambda found: found["interval_s"])
        assert away["interval_s"] > 0.9, "the time without an agent is measured, too"
        assert 700 < away["services"][0]["pps"] < 1300
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    assert process.stderr.read().strip() == "", "one sentence, however long it was away"
    process.stdout.close()
    process.stderr.close()


def test_a_reader_that_leaves_ends_it(busy: Agent, path: Path) -> None:
    with served(busy, path):
        process = subprocess.Popen([*TOP, "--batch", "--interval", "0.1"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(10) == 0


def test_the_screen(busy: Agent, path: Path) -> None:
    """Keys, an agent that leaves and comes back, and a terminal that is as before at the end."""
    with Terminal([*TOP, "--interval", "0.3"], os.environ) as terminal:
        with served(busy, path):
            terminal.wait(lambda lines: lines[0].startswith("lbagent top  pps "))
            lines = terminal.wait(lambda lines: lines[3].startswith("shop/web") and "k" in lines[3] + lines[4])
            assert lines[2].split() == ["SERVICE", "FRONTEND", "PPS*", "BPS", "NEW/S", "FLOWS"]
            terminal.press("b")
            terminal.wait(
                lambda lines: lines[2].startswith("BACKEND") and lines[3].split()[:2] == ["10.0.0.9:8080/TCP", "active"]
            )
            terminal.press("d")
            terminal.wait(lambda lines: lines[3].startswith("drop_race") and not lines[4])
            terminal.press("s/dns")
            terminal.wait(
                lambda lines: lines[1] == "filter: dns_" and lines[3].startswith("kube-system/dns") and not lines[4]
            )
            terminal.press("\r")
            terminal.wait(lambda lines: lines[1].startswith("filter: dns  ("))
            terminal.press("/\x7f\r")
            terminal.wait(lambda lines: lines[1].startswith("s services"))
            terminal.press(">")
            terminal.wait(lambda lines: "BPS*" in lines[2])
            terminal.press("p")
            terminal.wait(lambda lines: lines[0].endswith("paused"))
            terminal.press("p")
            terminal.wait(lambda lines: not lines[0].endswith("paused"))
        terminal.wait(lambda lines: lines[1].startswith(f"no agent answers on unix://{path}"[:60]))
        assert terminal.screen.lines[3].startswith("shop/web"), "the last values stay"
        with served(busy, path):
            terminal.wait(lambda lines: lines[1].startswith("s services"))
            terminal.press("q")
            assert terminal.process.wait(10) == 0
            assert terminal.modes == terminal.before


def test_a_signal_restores_the_terminal(busy: Agent, path: Path) -> None:
    with served(busy, path), Terminal([*TOP, "--interval", "0.3"], os.environ) as terminal:
        terminal.wait(lambda lines: lines[0].startswith("lbagent top  pps "))
        assert terminal.modes != terminal.before
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(10) == 128 + signal.SIGTERM
        assert terminal.modes == terminal.before


def test_a_terminal_that_cannot_move_its_cursor(busy: Agent, path: Path) -> None:
    with served(busy, path), Terminal(["env", "TERM=nonsense", *TOP], os.environ) as terminal:
        terminal.wait(lambda lines: "this terminal cannot show it" in lines[0])
        assert terminal.process.wait(10) == 1


def test_names_are_printable(busy: Agent, path: Path, lb: Run) -> None:
    services = busy.current.services
    busy.advance(
        (*services[:1], replace(services[1], name=replace(services[1].name, name="\x1b[2Jweb")), *services[2:])
    )
    with served(busy, path):
        out = lb("top", "--batch", "-n", "1", "--interval", "0.3").out
        assert "\x1b" not in out
        assert "shop/\\x1b[2Jweb" in out
