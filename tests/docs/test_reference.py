"""The generated reference and the manual pages have every command, key, metric, reason and exit code."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from lbagent.api import capabilities
from lbagent.checks.table import every_check
from lbagent.config import options
from lbagent.config.option_groups import grouped_options
from lbagent.maps.reasons import Reason, label
from tests.docs.tables import CODES, metric_rows
from tools.docs import man_pages, reference
from tools.docs.command_tree import Command, every_command
from tools.docs.examples import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]
CAPABILITIES = Path(capabilities.__file__).parent
COMMANDS = list(every_command())
BY_WORDS = {" ".join(command.words[1:]): command for command in COMMANDS}


def test_every_command_with_every_option() -> None:
    page = reference.commands_page()
    for command in COMMANDS:
        part = re.search(rf"^#+ {re.escape(command.name)}\n(.*?)(?=^#+ lbagent|\Z)", page, re.MULTILINE | re.DOTALL)
        assert part, command.name
        shown = [
            record for parameter in command.command.params if (record := parameter.get_help_record(command.context))
        ]
        assert [names for names, _ in shown if names.replace("|", "\\|") not in part[1]] == []
        assert command.summary or command.paragraphs


def test_every_key() -> None:
    page = reference.configuration_page()
    keys = [option.key for group in grouped_options().values() for option in group]
    assert sorted(keys) == sorted(option.key for option in options())
    for option in options():
        assert f"\n| `{option.key}` | " in page
        assert all(f"`{name.flag}`<br>`{name.env}`" in page for name in option.names)


def test_every_metric_reason_and_code() -> None:
    pages = dict(reference.pages())
    assert [name for name, *_ in metric_rows() if name not in pages["reference/metrics.md"]] == []
    written = {
        name for path in CAPABILITIES.glob("*.py") for name in re.findall(r'"(lbagent_\w+[a-z])"', path.read_text())
    }
    assert len(written) > 30
    assert sorted(name for name in written if f"| `{name}` |" not in pages["reference/metrics.md"]) == []
    assert [
        label(reason) for reason in Reason if reason and f"`{label(reason)}`" not in pages["reference/reasons.md"]
    ] == []
    for check in every_check():
        assert f"\n| `{check.name}` | " in pages["reference/checks.md"]
        assert not check.text or f"\n**`{check.name}`**\n\n: " in pages["reference/checks.md"]
    assert [code for code in CODES if f"\n| {code} | " not in pages["reference/exit-codes.md"]] == []


def test_every_metric_of_the_cloud_controller() -> None:
    """Those of single providers, too: docs/cloud.md has each name; of a name with a part that varies its beginning."""
    sources = "".join(path.read_text() for path in (ROOT / "lbagent" / "cloud").rglob("*.py"))
    names = set(re.findall(r'"((?:lbagent|service_controller)_[a-z_]+)(?=["{])', sources))
    assert {"lbagent_edge_mappings", "lbagent_cloud_pool_"} <= names
    text = (ROOT / "docs" / "cloud.md").read_text()
    assert sorted(name for name in names if name not in text) == []


def test_every_command_has_examples() -> None:
    assert sorted(EXAMPLES) == sorted(BY_WORDS)


@pytest.mark.parametrize("words", sorted(EXAMPLES))
def test_examples_are_commands_with_options_that_exist(words: str) -> None:
    for line, text in EXAMPLES[words]:
        assert text.endswith(".")
        found = re.search(r"lbagent [^|)<]*", line)
        assert found
        arguments = shlex.split(found[0])
        command = BY_WORDS[""]
        while isinstance(command.command, click.Group):
            arguments = arguments[1:]
            command = next(each for each in command.commands() if each.words[-1] == arguments[0])
        assert "".join(words.split()) in "".join(command.words), (words, line)
        known = {name for parameter in command.command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        assert {each.partition("=")[0] for each in arguments[1:] if each.startswith("-")} <= known | {"--help"}, line


def run_groff(folder: Path) -> subprocess.CompletedProcess[str]:
    files = sorted(map(str, folder.glob("*.1")))
    return subprocess.run(["groff", "-ww", "-man", "-Tutf8", *files], capture_output=True, text=True, check=True)


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed (make setup)")
def test_manual_pages(tmp_path: Path) -> None:
    (tmp_path / "lbagent-gone.1").write_text("of a command that is gone")
    made = man_pages.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"-".join(command.words) + ".1" for command in COMMANDS}
    assert len(made) == len(COMMANDS)
    done = run_groff(tmp_path)
    assert done.stderr == ""
    for command in COMMANDS:
        check_page((tmp_path / f"{'-'.join(command.words)}.1").read_text(), command)


def check_page(text: str, command: Command) -> None:
    sections = re.findall(r"^\.SH (.+)$", text, re.MULTILINE)
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert {"OPTIONS", "EXAMPLES", "EXIT STATUS"} <= set(sections), command.name
    assert text.count(".nf\n") == len(EXAMPLES[" ".join(command.words[1:])])
    assert all(f".B {code}\n" in text for code in CODES)


def test_text_is_no_request_of_roff() -> None:
    assert man_pages.roff(".TH a\\b") == "\\&.TH a\\eb"
    assert man_pages.roff("--wait `x`") == "\\-\\-wait x"
