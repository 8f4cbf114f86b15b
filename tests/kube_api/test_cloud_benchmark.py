"""The benchmark of addresses, with small numbers: each row is measured, and its tables have every row."""

from __future__ import annotations

import json

import pytest

from bench import report
from bench.cloud import cloud_tables, many
from bench.cloud.asking import Ask, failing_s, longest_gap_s
from bench.cloud.measure import Amount, _trials, measure
from bench.cloud.stage import POOL
from tests.kube_api.programs import Programs
from tests.lab.netns import LabError

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.slow, pytest.mark.early]
ROWS = ("l2-cable", "kill", "bgp-cable", "many")


@pytest.mark.timeout(900)  # starts of agents and two failovers: minutes on a machine with much other work
def test_a_small_run_gives_every_row(programs: Programs) -> None:
    amount = Amount(ROWS, times=1, services=8, peace_s=5.0, restart_s=3.0)
    result = json.loads(json.dumps(measure(amount, metallb=False, say=str)))
    rows = result["rows"]
    assert result["missing"] == ["MetalLB"]
    (cable,) = rows["l2-cable"]["lbagent"]
    assert cable["gap_s"] > 1.0, "a Lease of 2 s that was renewed a second ago"
    (kill,) = rows["kill"]["lbagent"]
    assert (kill["failures"], kill["syns_again"]) == (0, 0)
    (routed,) = rows["bgp-cable"]["lbagent"]
    assert routed["gap_s"] > 0.3, "less than BFD's interval"
    ours = rows["many"]["lbagent"]
    assert (ours["services"], ours["controller_writes"], ours["node_writes"]) == (8, 4.0, 1.0)
    assert ours["restart_writes"] == 0
    assert 0.5 < ours["node_writes_a_s"] < 1.1
    assert ours["controller_writes_a_s"] == 0
    text = cloud_tables.text({"machine": report.machine(), "quick": False, **result})
    for row in (
        "ARP: the leader's cable",
        "BGP with BFD",
        "killed and started again | 1 ",
        "8 Services: all addressed",
    ):
        assert row in text
    assert "Not measured: MetalLB." in text


def test_metallb_is_compared_where_it_was_measured() -> None:
    trial = {"gap_s": 2.0, "failures": 0, "syns_again": 3}
    rows = {"l2-cable": {"lbagent": [trial] * 20, "MetalLB": [trial | {"gap_s": 5.0}] * 19 + [trial | {"gap_s": 9.0}]}}
    line = cloud_tables.deaths(rows).splitlines()[-1]
    assert "5.00 / 5.00 / 9.00" in line
    assert "2.00 / 2.00 / 2.00" in line
    assert "| 0.40 " in line
    assert "<= 0.45 met" in line
    rows["l2-cable"]["lbagent"] = [trial | {"gap_s": 2.6}] * 20
    assert cloud_tables.deaths(rows).count("MISSED") == 2


def test_a_trial_that_cannot_be_made_ends_its_row_and_is_named() -> None:
    trials = iter([{"gap_s": 1.0, "failures": 0, "syns_again": 0}])
    missing: list[str] = []

    def trial() -> dict[str, float]:
        for found in trials:
            return found
        raise LabError("no node answers")

    assert len(_trials(trial, 3, "MetalLB l2-cable", missing, str)) == 1
    assert missing == ["MetalLB l2-cable, after 1 of 3 times: no node answers"]


def test_a_gap_is_between_answers_and_one_that_goes_on_counts_to_the_end() -> None:
    asks = [Ask(0.0, 0.01), Ask(1.0, 1.01), Ask(2.0, 5.01), Ask(5.0, 5.02), Ask(6.0, None)]
    assert longest_gap_s(asks) == pytest.approx(4.0)
    assert longest_gap_s(asks, 5.0) == pytest.approx(0.98)
    assert longest_gap_s([Ask(1.0, None), Ask(4.0, None)], 1.0) == 3.0
    assert failing_s(asks, 0.5) == 5.5
    assert failing_s(asks[:2], 0.0) == 0.0


def test_ranges_are_written_out_again() -> None:
    addresses = many.expand(POOL)
    assert len(set(addresses)) == 1000
    assert many._ranges(addresses) == POOL
