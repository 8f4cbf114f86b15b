"""The status page in Chromium: what it shows, themes, contrast, names, a narrow window, and what manifests may not do to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.api import node_summary, status_page
from lbagent.targets.data_plane import Counters
from tests.api.serving import Agent, served
from tests.lab.chromium import Chromium, Page
from tests.lab.debian_packages import CHROMIUM, unpacked
from tests.sync.generations import generation

MAX_BYTES = 200_000
MAX_FIRST_PAINT_MS = 1000
LEAST_CONTRAST = 4.5  # WCAG 2.2, 1.4.3
HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
CELLS = "[...document.querySelectorAll('#%s tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
# for each text that is shown: the lowest contrast of its colour on the background behind it
CONTRASTS = """(() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const linear = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = one => { for (; one; one = one.parentElement) { const c = parts(getComputedStyle(one).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || one.closest('script')) continue;
    const [a, b] = [light(parts(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), walker.currentNode.textContent]);
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    unpacked("chromium", CHROMIUM)
    with Chromium() as browser:
        yield browser


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    monkeypatch.setattr(node_summary, "EVENT_INTERVAL_S", 0.3)
    agent = Agent()
    agent.counters = counters(0)
    agent.history = [generation(2, HOSTILE), generation(1, "start of the agent")]
    agent.problems = ["the API server does not answer"]
    return agent


def counters(packets: int) -> Counters:
    return Counters(
        reasons={"fwd_new": (1 + packets, 100 * packets), "drop_race": (1, 60)},
        services={1: (packets, 100 * packets)},
        new_flows={1: packets // 10},
        backends={1: (packets, 100 * packets)},
        live_flows={1: 5},
        sessions={"tcp": 5},
    )


@pytest.fixture
def url(agent: Agent, tmp_path: Path) -> Iterator[str]:
    with served(agent, tmp_path / "agent.sock", "127.0.0.1:0", ui_hosts=()) as server:
        yield f"http://127.0.0.1:{server.metrics_port}/"


@contextlib.contextmanager
def opened(browser: Chromium, url: str, width: int = 1200, scheme: str = "light") -> Iterator[Page]:
    page = browser.page()
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.call("Page.navigate", url=url)
    page.wait("document.querySelectorAll('#services tbody tr').length > 0")
    try:
        yield page
    finally:
        page.call("Page.close")


def test_what_it_shows(browser: Chromium, agent: Agent, url: str) -> None:
    """Tables and chart follow the counters; the browser asks no other host, and the policy refuses nothing of it."""
    with opened(browser, url) as page:
        assert page.evaluate("document.getElementById('state').textContent") == "ready"
        (web,) = (row for row in page.evaluate(CELLS % "services") if row[1] == "10.96.0.10:80/TCP")
        assert web[:3] == ["shop/web", "10.96.0.10:80/TCP", "2/3"]
        assert ["10.0.0.9:8080/TCP", "active", "n1", "5"] in [row[:4] for row in page.evaluate(CELLS % "backends")]
        assert {row[0] for row in page.evaluate(CELLS % "verdicts")} == {"fwd_new", "drop_race"}
        assert [row[0] for row in page.evaluate(CELLS % "changes")] == ["2", "1"]
        assert page.evaluate("[...document.querySelectorAll('#problems li')].map(line => line.textContent)") == [
            "the API server does not answer", "a.yaml:3: spec: bad",
        ]  # fmt: skip
        assert page.evaluate("document.getElementById('facts').textContent").startswith("generation 3, 5 flows, ")
        agent.counters = counters(123_456)
        page.wait(f"({CELLS % 'services'})[0][5] === '123,456'")
        rate = page.evaluate(f"Number(({CELLS % 'services'})[0][3].replaceAll(',', ''))")
        bits = page.evaluate(f"Number(({CELLS % 'services'})[0][4].replaceAll(',', ''))")
        if rate:  # else the next event has come already
            assert 50_000 < rate < 500_000
            assert bits == pytest.approx(800 * rate, rel=0.01)
            begun = page.evaluate(f"Number(({CELLS % 'services'})[0][6].replaceAll(',', ''))")
            assert begun == pytest.approx(rate / 10, rel=0.01)
        page.wait("document.getElementById('forwarded').points.length > 3")
        assert page.evaluate("document.getElementById('highest').textContent.replaceAll(',', '')").isdecimal()
        heights = page.evaluate("[...document.getElementById('forwarded').points].map(point => point.y)")
        assert min(heights) == pytest.approx(3.0, abs=0.1), "the highest value reaches the top"
        assert max(heights) == pytest.approx(97.0, abs=0.1), "no packets are the base line"
        asked = {each["request"]["url"].removeprefix(url) for each in page.events("Network.requestWillBeSent")}
        assert asked <= {"", "v1/events", "v1/summary", "favicon.ico"}
        assert [each["entry"]["text"] for each in page.events("Log.entryAdded") if "favicon" not in str(each)] == []
        assert page.events("Runtime.exceptionThrown") == []


def test_names_of_manifests_are_text(browser: Chromium, agent: Agent, url: str) -> None:
    agent.problems = [HOSTILE]
    services = agent.current.services
    agent.advance((*services[:1], replace(services[1], name=replace(services[1].name, name=HOSTILE)), *services[2:]))
    with opened(browser, url) as page:
        assert [row[2] for row in page.evaluate(CELLS % "changes")] == [HOSTILE, "start of the agent"]
        assert f"shop/{HOSTILE}" in [row[0] for row in page.evaluate(CELLS % "services")]
        assert page.evaluate("document.title") == "lbagent"
        assert page.evaluate("document.querySelectorAll('img, main script').length") == 0


def test_the_policy_refuses_other_scripts(browser: Chromium, url: str) -> None:
    """Even where a text became HTML, nothing of it would run or load."""
    with opened(browser, url) as page:
        page.evaluate(
            "document.getElementById('facts').innerHTML = '<img src=/x onerror=\"document.title=1\"><b id=b style=\"color: red\">'"
        )
        page.evaluate(
            "{ const s = document.createElement('script'); s.textContent = 'document.title = 2'; document.body.append(s); }"
        )
        found = page.evaluate("fetch('http://localhost:1/').then(() => 'asked', () => 'refused')")
        assert (page.evaluate("document.title"), found) == ("lbagent", "refused")
        assert any("Content Security Policy" in each["entry"]["text"] for each in page.events("Log.entryAdded"))


def test_size_and_first_paint(browser: Chromium, url: str) -> None:
    assert len(status_page.page()) <= MAX_BYTES
    times = []
    for _ in range(3):
        with opened(browser, url) as page:
            page.wait("performance.getEntriesByName('first-contentful-paint').length > 0")
            times.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    assert min(times) <= MAX_FIRST_PAINT_MS


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_in_both_themes(browser: Chromium, agent: Agent, url: str, scheme: str) -> None:
    """The theme is the system's, then that of the button; each has enough contrast, whichever way it was chosen."""
    other = {"light": "dark", "dark": "light"}[scheme]
    with opened(browser, url, scheme=scheme) as page:
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert page.names("button") == [f"{other.title()} theme"]
        _require_contrast(page)
        page.evaluate("document.getElementById('theme').click()")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == other
        assert page.names("button") == [f"{scheme.title()} theme"]
        _require_contrast(page)
        page.evaluate("document.getElementById('theme').click()")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == before
        page.evaluate("localStorage.clear()")


def _require_contrast(page: Page) -> None:
    found = page.evaluate(CONTRASTS)
    assert len(found) > 40
    assert [each for each in found if each[0] < LEAST_CONTRAST] == []


def test_accessible_names(browser: Chromium, url: str) -> None:
    with opened(browser, url) as page:
        assert page.names("table") == ["Services", "Backends", "Verdicts", "Changes"]
        assert page.names("region") == page.names("table")
        page.wait("document.getElementById('forwarded').points.length > 1")
        (chart,) = (name for name in page.names("image") if name)
        assert chart.startswith("Packets per second: ")
        assert chart.endswith(" refused")
        assert page.evaluate("document.getElementById('traffic').getAttribute('role')") == "img"
        assert "" not in [name for role in ("columnheader", "heading", "button") for name in page.names(role)]
        assert page.evaluate("document.documentElement.lang") == "en"


def test_a_narrow_window(browser: Chromium, agent: Agent, url: str) -> None:
    """At 400 pixels the page itself does not scroll sideways: the tables do."""
    agent.problems = ["x" * 300]
    with opened(browser, url, width=400) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert page.evaluate(
            "document.querySelector('.scroll').scrollWidth > document.querySelector('.scroll').clientWidth"
        )
        box: dict[str, Any] = page.evaluate("document.getElementById('theme').getBoundingClientRect().toJSON()")
        assert box["right"] <= 400
        assert box["height"] >= 24


def test_the_agent_is_away_for_a_while(browser: Chromium, agent: Agent, tmp_path: Path) -> None:
    """One sentence, the last values stay, and they go on when it is back."""
    with contextlib.ExitStack() as running, contextlib.ExitStack() as closing:
        server = running.enter_context(served(agent, tmp_path / "agent.sock", "127.0.0.1:0", ui_hosts=()))
        port = server.metrics_port
        page = closing.enter_context(opened(browser, f"http://127.0.0.1:{port}/"))
        running.close()
        page.wait("document.getElementById('state').textContent === 'no answer'")
        assert page.evaluate("document.querySelectorAll('#problems li').length") == 1
        assert page.evaluate("document.getElementById('problems').textContent").startswith("The agent does not answer")
        assert len(page.evaluate(CELLS % "services")) == 4
        with served(agent, tmp_path / "again.sock", f"127.0.0.1:{port}", ui_hosts=()):
            page.wait("document.getElementById('state').textContent === 'ready'")
