"""deploy/monitoring: Prometheus' own program takes the rules and runs their tests; every name in them exists."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbagent.api.capabilities import every_capability
from lbagent.maps.reasons import Reason, label
from lbagent.model.check import Severity
from lbagent.observe.metric import Metric
from tests.lab.debian_packages import PROMETHEUS, unpacked

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
RULES = yaml.safe_load((FOLDER / "rules.yaml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
OF_PROMETHEUS = {"up"}  # a metric that Prometheus itself makes
TARGET_LABELS = {"instance", "job", "le"}
RUNBOOKS = "https://lbagent.io/docs/monitoring.html#"


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [rule["expr"] for rule in ALERTS] + [each["expr"] for panel in panels() for each in panel["targets"]]


def metrics() -> dict[str, Metric[Any]]:
    """The metrics of the code, by the names of their series."""
    found = {}
    for metric in (metric for capability in every_capability() for metric in capability.metrics):
        endings = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        found |= {metric.name + ending: metric for ending in endings}
    return found


def names_in(expression: str) -> set[str]:
    """The names of series: words before a brace, or that no function, keyword or label is."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    bare = re.sub(r"\{[^}]*\}|\b(?:by|on)\s*\([^)]*\)", " ", bare)
    return set(re.findall(r"\b(?:lbagent|kubeproxy|process)_\w+|\bup\b", bare))


def labels_in(expression: str) -> Iterator[tuple[str, str]]:
    """Pairs of a series and a label that is selected there."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    for name, selectors in re.findall(r"(\w+)\{([^}]*)\}", bare):
        for word in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selectors):
            yield name, word


@pytest.fixture(scope="module")
def promtool() -> str:
    return str(unpacked("prometheus", PROMETHEUS).program("promtool"))


def run(*argv: str) -> str:
    done = subprocess.run(argv, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_prometheus_takes_the_rules(promtool: str) -> None:
    assert f"{len(ALERTS)} rules found" in run(promtool, "check", "rules", "rules.yaml")


@pytest.mark.slow
def test_the_alerts_fire_and_do_not(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", "rules_test.yaml")


@pytest.mark.slow
def test_prometheus_takes_the_queries_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    queries = [each["expr"] for panel in panels() for each in panel["targets"]]
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(queries)} rules found" in run(promtool, "check", "rules", str(file))


def test_every_alert_has_what_an_operator_needs() -> None:
    assert len(ALERTS) >= 10
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    headings = set(re.findall(r"^### (\w+)$", (ROOT / "docs" / "monitoring.md").read_text(), re.MULTILINE))
    assert headings == {rule["alert"] for rule in ALERTS}
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == RUNBOOKS + rule["alert"].lower()


def test_every_alert_has_a_series_at_which_it_fires_and_one_at_which_it_does_not() -> None:
    tests = yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"]
    for wanted in (True, False):
        names = [
            each["alertname"] for one in tests for each in one["alert_rule_test"] if bool(each["exp_alerts"]) is wanted
        ]
        assert names == [rule["alert"] for rule in ALERTS]


def test_the_operators_form_has_the_same_rules() -> None:
    other = yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text())
    assert (other["apiVersion"], other["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert other["spec"] == RULES


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_metric_and_label_exists(expression: str) -> None:
    known, found = metrics(), names_in(expression)
    assert found, "an expression without a metric"
    assert found <= known.keys() | OF_PROMETHEUS
    for name, word in labels_in(expression):
        allowed = set(known[name].labels) if name in known else set()
        assert word in allowed | TARGET_LABELS, f"{name} has no label {word}"


def test_every_word_that_is_selected_exists() -> None:
    """Reasons and severities are words of the code: a selector with another one never finds anything."""
    words = {label(reason) for reason in Reason}
    for expression in expressions():
        for operator, pattern in re.findall(r'reason(=~|!=|=)"([^"]*)"', expression):
            for each in pattern.split("|") if operator == "=~" else [pattern]:
                assert any(re.fullmatch(each, word) for word in words), each
        for pattern in re.findall(r'severity="([^"]*)"', expression):
            assert pattern in {severity.value for severity in Severity}


def test_panels_do_not_overlap_and_have_titles() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    for panel in panels():
        assert panel["title"]
        assert panel["description"]
        assert all("$instance" in each["expr"] for each in panel["targets"])
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
