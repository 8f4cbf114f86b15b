"""The benchmark of Kubernetes, with a few Services: its figures have the right source, and its tables have every row."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import report
from bench.kube import change_storm, kube_proxy, kube_tables, measure, nft_commits
from bench.kube.slice_changes import SliceChanges
from bench.render.measure import QUICK, Amount
from tests.kube_api.programs import Programs
from tests.lab.netns import Namespace, run

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.slow]
AMOUNT = measure.Amount(services=(40,), starts=2, changes=6, rounds=2, rate=200, storm_s=1.0, storm_slices=10)


@pytest.mark.timeout(900)  # four starts of an agent and seconds of traffic: minutes on a machine with much other work
def test_a_small_cluster_gives_every_row(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBE_PROXY", "/nowhere")
    result = measure.measure(quick=True, say=str, amount=AMOUNT)
    (size,) = result["sizes"]
    ours = size["lbagent"]
    assert ours["cpu_s"] > 0
    assert ours["start_s"] > 0
    assert ours["starts"]["n"] == 2
    assert 0 <= ours["change"]["p50"] <= ours["change"]["sent_p50"]
    for storm in ours["storms"]:
        assert storm["changes"] == 200
        assert storm["is_complete"]
        assert 0 < storm["own_max_ms"] <= storm["lag_max_ms"]
    assert set(size["traffic"]) == {"connect_us", "requests_per_s", "gbit_per_s"}
    assert all(size["traffic"][key]["lbagent vip"]["median"] > 0 for key in size["traffic"])
    text = kube_tables.text({"machine": report.machine(), "quick": True, **json.loads(json.dumps(result))})
    assert text.count("\n| storm") == 10
    assert "Not measured: kube-proxy" in text


@pytest.fixture
def space() -> object:
    space = Namespace("nft")
    yield space
    space.delete()


def test_a_commit_of_nftables_is_heard_when_it_names_the_service(space: Namespace) -> None:
    commits = nft_commits.Commits(SimpleNamespace(lab=SimpleNamespace(node=space)))  # type: ignore[arg-type]

    def commit(name: str) -> bool:
        rules = f"table ip kube-proxy {{ chain service-X-default/{name}/tcp/http {{ counter; }}; }}"
        run(*space.command(["nft", "-f", "-"]), text=rules)
        time.sleep(0.05)
        return commits.poll()

    commits.arm("s1", 9)
    assert not commits.poll()
    assert not commit("s11")
    assert commit("s1")
    commits.arm("s1", 10)
    assert not commits.poll()
    assert commit("s1")
    commits.close()


def test_the_program_is_the_named_one_else_one_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBE_PROXY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kube_proxy.find() is None
    program = tmp_path / "kube-proxy"
    program.write_text("#!/bin/sh\n")
    os.chmod(program, 0o755)
    assert kube_proxy.find() == str(program)
    monkeypatch.setenv("KUBE_PROXY", str(tmp_path / "other"))
    assert kube_proxy.find() is None


def test_a_lag_counts_until_the_change_or_a_later_one_is_seen() -> None:
    marks = [(0.0, 11), (1.0, 12), (2.0, 13)]
    seen = [(-1.0, 10), (1.5, 12), (2.25, 13)]
    assert change_storm._lags(marks, seen) == [1500.0, 500.0, 250.0]


@pytest.mark.parametrize("amount", [Amount(), QUICK])
def test_endpoints_go_and_come_back_for_each_of_the_two(amount: Amount) -> None:
    changes = SliceChanges(SimpleNamespace(_admin="token"), amount.changing, 3)  # type: ignore[arg-type]
    now: dict[str, int] = {}
    for count in (amount.changes, amount.proxy_changes):
        found = [changes.next_change() for _ in range(count)]
        assert {left for _, left in found} == {2, 3}
        for name, left in found:
            assert left != now.get(name, 3)
            now[name] = left
