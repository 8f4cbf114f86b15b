"""docs/kubernetes.md names settings, tests and metrics that exist, and has a row for each rule."""

from __future__ import annotations

import re
from pathlib import Path

from lbagent.config import options
from lbagent.config.schema import HEALTHZ, METRICS
from lbagent.healthz.proxy_health import STALE_S
from lbagent.http.listeners import BIND_RETRY_DELAY_S

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "kubernetes.md").read_text()
SETTINGS = TEXT.partition("## Settings")[2].partition("\n## ")[0]
# a row whose first cell is empty continues the one above
RULES = TEXT.partition("## The rules")[2].replace("|\n|  |", "|")


def test_settings_exist() -> None:
    flags = {name.flag for option in options() for name in option.names} | {
        f"--no-{option.key}" for option in options() if option.kind == "switch"
    }
    rows = [line.split(" | ") for line in SETTINGS.splitlines() if line.startswith("| `--")]
    assert len(rows) > 10
    named = {flag for row in rows for flag in re.findall(r"`(--[a-z0-9-]+)`", row[1])}
    rest = TEXT.replace(SETTINGS, "")
    named |= set(re.findall(r"`(--[a-z0-9-]+)`", rest))
    assert named <= flags


def test_every_rule_has_a_row_and_tests_that_exist() -> None:
    rules = re.findall(r"^\| A(\d+) \|", RULES, re.MULTILINE)
    assert rules == [str(number) for number in (*range(1, 17), 18)]
    files = re.findall(r"`(tests/[\w/.]+\.py)`", RULES)
    stories = re.findall(r"`([\w-]+\.txt)`", RULES)
    assert len(files) > 20
    assert len(stories) > 20
    missing = [name for name in files if not (ROOT / name).is_file()]
    missing += [name for name in stories if not (ROOT / "tests" / "scenario" / name).is_file()]
    assert missing == []


def test_tests_that_are_named_after_a_rule_are_in_its_row() -> None:
    rows = {f"a{number}": row for number, row in re.findall(r"^\| A(\d+) \|(.*)$", RULES, re.MULTILINE)}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for rule in set(re.findall(r"def test_(a\d+)_", path.read_text())):
            name = str(path.relative_to(ROOT))
            assert name in rows[rule] or "tests/config" in name or "tests/objects" in name, (rule, name)


def test_ports_and_times_are_those_of_the_code() -> None:
    for address in (*HEALTHZ, *METRICS):
        assert address in TEXT
    assert f"waited {STALE_S:g} s" in TEXT
    assert f"every {BIND_RETRY_DELAY_S:g} s" in TEXT
