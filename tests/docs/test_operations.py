"""docs/operations.md says what the code does: tables, flags, commands and the systemd unit."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from lbagent.api.agent_status import TargetStatus
from lbagent.checks.table import every_check
from lbagent.cli import kubectl_plugin
from lbagent.cli.main import VERBS, cli
from lbagent.config import options
from tests.checks.looking import conditions
from tests.docs.tables import API_FILE, FILE, TABLES, written

ROOT = FILE.parents[1]
TEXT = FILE.read_text()
FILES = (FILE, ROOT / "README.md", ROOT / "docs" / "from-other-tools.md")
UNIT = ROOT / "deploy" / "lbagent.service"


def test_tables_are_those_of_the_code() -> None:
    """When this fails: `python -m tests.docs.tables`."""
    assert written(TEXT) == TEXT
    api = API_FILE.read_text()
    assert written(api) == api
    assert set(re.findall(r"<!-- table: (\w+) -->", TEXT + api)) == set(TABLES)


def every_flag() -> set[str]:
    """Return each long flag of each command."""
    found = {"--help", "--version"}

    def walk(command: click.Command) -> None:
        for parameter in command.params:
            found.update(word for word in (*parameter.opts, *parameter.secondary_opts) if word.startswith("--"))
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                below = command.get_command(click.Context(command), name)
                assert below is not None
                walk(below)

    walk(cli)
    return found | set(kubectl_plugin.parser()._option_string_actions)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_flags_exist(file: Path) -> None:
    """Every `--flag` in backquotes or in an example that is lbagent's."""
    known = every_flag()
    for line in re.findall(r"lbagent [a-z].*", file.read_text()):
        named = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", line.split("#")[0])
        assert set(named) <= known, line
    assert set(re.findall(r"`(--[a-z0-9-]+)`", file.read_text())) <= known


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_commands_exist(file: Path) -> None:
    for words in re.findall(r"\blbagent ([a-z]+)(?= |`|$)", file.read_text(), re.MULTILINE):
        assert words in VERBS or words in {
            "agent",
            "balances",
            "is",
            "does",
            "itself",
            "keeps",
            "makes",
            "object",
            "objects",
            "needs",
        }, words


def test_the_unit_starts_the_agent_with_flags_that_exist() -> None:
    lines = dict(
        line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")
    )
    words = shlex.split(lines["ExecStart"])
    assert words[1] == "agent"
    flags = {option.flag for option in options()} | {"--config"}
    assert {word for word in words if word.startswith("--")} <= flags
    assert lines["Type"] == "notify"
    assert lines["ExecReload"].endswith("HUP $MAINPID")


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[str]:
    """Return what is in backquotes in the first cell of each row."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def test_fields_of_targets() -> None:
    assert [row for row in rows(section("Run as a service")) if row in TargetStatus.__struct_fields__] == list(
        TargetStatus.__struct_fields__
    )


def test_log_events_exist() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "lbagent").rglob("*.py"))
    events = rows(section("Log"))
    assert "attachments changed" in events
    assert [event for event in events if f'"{event}"' not in source] == []


def test_every_condition_has_a_line() -> None:
    """In the order in which `status` shows them, each with its severity, what is so, why, and what to do."""
    table = TEXT.split("## What is wrong")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \|(.*)\|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == [check.name for check in conditions()]
    assert all(len(rest.split(" | ")) == 4 for _, rest in rows)
    severities = {name: rest.split(" | ")[0].strip().partition(";")[0] for name, rest in rows}
    assert severities == {check.name: check.severity.value for check in conditions()}


def test_every_check_of_doctor_has_a_line() -> None:
    """The table is made from that of the checks: each name once, in the order in which doctor shows findings."""
    names = [check.name for check in every_check()]
    assert len(names) == len(set(names))
    found = rows(section("Before the start"))
    assert found == [check.name for check in every_check() if check.when.offline]
    assert set(found) | set(rows(section("What is wrong"))) == set(names)
