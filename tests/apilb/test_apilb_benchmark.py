"""The benchmark of load balancers of API servers, with small numbers: each row is measured, and its tables have every row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.apilb import apilb_tables
from bench.apilb.measure import Amount, measure, quick
from bench.apilb.outages import FAILURES
from bench.apilb.ways import AGAIN, HAPROXY, NATIVE, SEEN
from lbagent.probes.probe_spec import ProbeSpec
from tests.lab.debian_packages import HAPROXY as PACKAGES
from tests.lab.debian_packages import unpacked
from tests.lab.netns import LabError

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.slow]
CHECK = ProbeSpec(interval=0.3, timeout=0.5)


@pytest.mark.timeout(900)  # starts of agents and many failures: minutes on a machine with much other work
def test_a_small_run_gives_every_row() -> None:
    unpacked("haproxy", PACKAGES)  # without it a row would be missing
    few: dict[str, Any] = {
        "times": 1,
        "rounds": 3,
        "handshakes": 3,
        "fetches": 2,
        "bulk_bytes": 50_000_000,
        "at_once": 1,
    }
    few |= {"at_once": 1, "connections": 100, "cycles": 1}
    amount = Amount(check=CHECK, pools=4, idle_s=2.0, watches=3, ssh_hosts=3, **few)
    result = json.loads(json.dumps(measure(amount, say=str)))
    assert result["missing"] == []
    rows = result["rows"]
    for row in ("handshake", "bulk"):
        assert set(rows[row]["over direct"]) == {SEEN, NATIVE, HAPROXY, AGAIN}
    burden = rows["bulk"]["cpu_s"]
    assert burden[NATIVE]["agent"] == 0, "a stopped agent"
    assert burden[HAPROXY]["haproxy"] > 5 * burden[NATIVE]["haproxy"], (
        "the transfer went by HAProxy, and by HAProxy alone"
    )
    assert set(rows["changes"]) == {NATIVE, HAPROXY}  # tests/apilb/test_through_changes.py checks it
    for row in ("outages", "fast-outages"):
        assert [trial["failure"] for trial in rows[row]["trials"]] == list(FAILURES)
        for trial in rows[row]["trials"]:
            for who in ("native", "HAProxy"):
                assert trial[f"{who} out"] > rows[row]["interval_s"], "fewer failures than fall"
    assert rows["pools"]["checks_per_s"] > 3, "12 servers, each every 2 s"
    assert rows["pools"]["core"] > 0
    for trials in rows["watches"].values():
        assert [(trial["watches"], trial["reconnects"] >= 3) for trial in trials] == [(3, True)]
    assert rows["ssh"]["many"]["seconds"] > 0
    text = apilb_tables.text({"machine": report.machine(), "quick": True, **result})
    assert text.count("\n| 0.25 s, 3, 2") == text.count("\n| 0.3 s, 3, 2") == 2 * len(FAILURES)
    for row in ("connect + TLS", "s a GB", "4 pools of 3 servers", "3 watches", "3 hosts / one"):
        assert row in text


def _failed(failure: str, native: float, theirs: float) -> dict[str, Any]:
    return {"failure": failure, "native out": native, "HAProxy out": theirs, "native back": 4.0, "HAProxy back": 4.5}


def test_a_server_is_late_when_it_is_so_in_one_failure() -> None:
    trials = [_failed(name, 5.0, 5.5) for name in FAILURES]
    result = {"interval_s": 2.0, "fall": 3, "rise": 2, "trials": trials}
    assert report.missed(apilb_tables.outages({"outages": result})) == []
    late = {**result, "trials": [*trials, _failed("500", 5.0, 2.9)]}
    (line,) = report.missed(apilb_tables.outages({"outages": late}))
    assert "500: out" in line
    assert "+2.10" in line
    fast = {**result, "interval_s": 0.25}
    assert len(report.missed(apilb_tables.outages({"fast-outages": fast}))) == len(FAILURES)


def test_one_connection_to_a_removed_server_is_a_miss() -> None:
    found = {"connections": 10_000, "changes": {"server removed": 9}, "slowest_change_s": 1.0, "slowest_s": 0.1}
    clean, broken, astray = ({"failures": f, "to_removed": r} for f, r in (([], 0), (["x"], 0), ([], 1)))
    for counts, misses in ((clean, 0), (broken, 1), (astray, 1)):
        assert len(report.missed(apilb_tables.changes({"changes": {NATIVE: found | counts}}))) == misses


def test_a_ratio_is_missed_below_its_target_too() -> None:
    assert apilb_tables.at_least(0.97, 0.97) == ">= 0.97 met"
    assert apilb_tables.at_least(0.90, 0.97) == ">= 0.97 MISSED by 7 %"


def test_what_haproxy_has_not_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise LabError("no apt-get")

    monkeypatch.setattr("bench.apilb.measure.haproxy_version", missing)
    result = measure(quick(("pools",), 1), say=str)
    assert result["missing"] == ["HAProxy, and every row beside it: no apt-get"]
    text = apilb_tables.text({"machine": report.machine(), "quick": True, **result})
    assert "Not measured: HAProxy" in text


def test_the_document_has_a_place_for_the_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = tmp_path / "benchmarks.md"
    copy.write_text(report.DOCUMENT.read_text())
    monkeypatch.setattr(report, "DOCUMENT", copy)
    report.into_document("the tables", report.APILB_BEGIN)
    assert f"{report.APILB_BEGIN}\nthe tables\n{report.END}" in copy.read_text()
