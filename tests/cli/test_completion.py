"""Completion in the shells: the script of bash in a real bash, with a running agent and without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from lbagent.cli.completions import add_completions
from lbagent.cli.main import cli
from tests.api.serving import Agent

RUN = """
source ./script
COMP_LINE="$1" COMP_POINT=${#1} COMPREPLY=()
_lbagent_completion "$2"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(line: str, folder: Path, **environment: str) -> set[str]:
    """What bash offers at the end of a line; words after the last colon, as readline replaces only these."""
    program = folder / "lbagent"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lbagent "$@"\n')
    program.chmod(0o755)
    script = subprocess.run([str(program), "completion", "bash"], capture_output=True, text=True, check=True)
    (folder / "script").write_text(script.stdout)
    done = subprocess.run(
        ["bash", "--norc", "-c", RUN, "bash", line, str(program)],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {word for word in done.stdout.splitlines() if word}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lbagent backend list --service ", {"shop/web", "kube-system/dns"}),
        ("lbagent backend list --service=sh", {"shop/web"}),
        ("lbagent backend list --namespace k", {"kube-system"}),
        ("lbagent backend drain --node ", {"n1", "n2"}),
        ("lbagent backend drain 10.0.0.10:8", {"8080/TCP"}),  # bash keeps what is before the colon
        ("lbagent backend drain 10.0.0.1", {"10.0.0.10:8080/TCP", "10.0.0.11:8080/TCP"}),
        ("lbagent svc get shop/", {"shop/web"}),
        ("lbagent doctor --device l", {"lo"}),
        ("lbagent verify --renderer nft", {"nftables"}),
        ("lbagent verify --ap", {"--api"}),
        ("lbagent completion z", {"zsh"}),
        ("lbagent back", {"backend"}),
    ],
)
def test_bash(agent: Agent, tmp_path: Path, line: str, expected: set[str]) -> None:
    found = completed(line, tmp_path)
    assert found >= expected
    if "--device" not in line:
        assert found == expected


def test_without_an_agent_nothing_is_offered_and_nothing_is_said(tmp_path: Path) -> None:
    assert completed("lbagent backend list --service ", tmp_path, LBAGENT_SOCKET=str(tmp_path / "none")) == set()


def test_reasons_are_a_list_with_commas() -> None:
    option = click.Option(["--reason", "reasons"])
    command = add_completions(click.Command("monitor", params=[option]))
    found = [each.value for each in option.shell_complete(click.Context(command), "drop_race,drop_snat")]
    assert found == ["drop_race,drop_snat_exhausted"]


@pytest.mark.parametrize("flag", ["--service", "--node", "--device", "--renderer", "--namespace"])
def test_every_command_with_such_an_option_completes_it(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_LBAGENT_COMPLETE", "bash_complete")
    seen = 0

    def check(command: click.Command) -> None:
        nonlocal seen
        for parameter in command.params:
            if flag in parameter.opts:
                seen += 1
                assert "shell_complete" in vars(parameter), (command.name, flag)
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                below = command.get_command(click.Context(command), name)
                assert below is not None
                check(below)

    check(cli)
    assert seen


def test_nothing_is_changed_while_no_shell_requests_it() -> None:
    script = "import sys; from lbagent.cli.main import run; run(['svc', 'list', '--help']); print('lbagent.cli.completions' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
