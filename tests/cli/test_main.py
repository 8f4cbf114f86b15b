"""How commands start and end: modules, help, exit codes, sentences."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import lbagent
from lbagent.cli import main
from lbagent.errors import LbError, NotFound
from tests.api.serving import Agent
from tests.cli.conftest import Run

HEAVY = {
    "msgspec", "asyncio", "yaml", "aiohttp", "prometheus_client", "pyroute2", "bcc", "logging",
    "lbagent.config", "lbagent.model", "lbagent.maps", "lbagent.bpf", "lbagent.net", "lbagent.sync", "lbagent.agent", "lbagent.api.named_backends",
}  # fmt: skip


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter without this machine's site hooks, which would change the module list."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


def test_svc_list_imports_nothing_heavy(agent: Agent) -> None:
    """Start <= 150 ms rests on this list: click, http.client, json."""
    script = "import sys; from lbagent.cli.main import run; code = run(['svc', 'list']); print(code, *sys.modules, file=sys.stderr)"
    done = python("-c", script)
    code, *modules = done.stderr.split()
    assert code == "0"
    assert done.stdout.startswith("ID   FRONTEND")
    assert HEAVY.isdisjoint(modules)
    assert {name for name in modules if name.startswith("lbagent")} == {
        "lbagent", "lbagent.defaults", "lbagent.durations", "lbagent.errors", "lbagent.api", "lbagent.api.capabilities", "lbagent.api.capabilities.status",
        "lbagent.api.capabilities.services", "lbagent.api.capability", "lbagent.api.client", "lbagent.observe", "lbagent.observe.metric",
        "lbagent.cli", "lbagent.cli.main", "lbagent.cli.options", "lbagent.cli.output", "lbagent.cli.verbs", "lbagent.cli.verbs.svc",
    }  # fmt: skip


# Settings are msgspec structs; all other commands start without what is heavy.
OF_SETTINGS = {"msgspec", "lbagent.config", "lbagent.model"}
WITH_SETTINGS = {"agent", "config", "doctor", "record", "render", "verify"}


@pytest.mark.parametrize("verb", main.VERBS)
def test_no_verb_starts_with_anything_heavy(verb: str) -> None:
    """Also what a verb's options and sub-commands are made of: `--help` of a verb reads all of them."""
    script = "import sys; from lbagent.cli.main import run; code = run([sys.argv[1], '--help']); print(code, *sys.modules, file=sys.stderr)"
    code, *modules = python("-c", script, verb).stderr.split()
    assert code == "0"
    assert HEAVY & set(modules) == (OF_SETTINGS if verb in WITH_SETTINGS else set())


def test_rows_of_the_agent_import_nothing_heavy() -> None:
    """Any command may read the rows of any capability."""
    script = "import sys; from lbagent.api.capabilities import every_capability; list(every_capability()); print(*sys.modules)"
    modules = python("-c", script).stdout.split()
    assert "lbagent.api.capabilities.native_pools" in modules
    assert HEAVY.isdisjoint(modules)


def test_module_entry() -> None:
    done = python("-m", "lbagent", "--version")
    assert done.returncode == 0
    assert lbagent.__version__ in done.stdout


def test_help_lists_every_command(lb: Run) -> None:
    done = lb("--help")
    assert done.code == 0
    for name in (
        "agent",
        "svc",
        "backend",
        "map",
        "status",
        "plan",
        "doctor",
        "bpf",
        "config",
        "cleanup",
        "completion",
    ):
        assert f"\n  {name} " in done.out


@pytest.mark.parametrize(
    "command",
    [
        "agent",
        "svc list",
        "svc get",
        "backend list",
        "backend get",
        "backend set-state",
        "backend clear-state",
        "backend drain",
        "map dump",
        "status",
        "plan",
        "doctor",
        "bpf build",
        "config check",
        "config show",
        "cleanup",
        "metrics",
        "completion",
    ],
)
def test_every_command_has_help(lb: Run, command: str) -> None:
    for flag in ("--help", "-h"):
        done = lb(*command.split(), flag)
        assert done.code == 0
        assert done.out.startswith(f"Usage: lbagent {command}")
        assert "\\" not in done.out, "what click reads as a mark is shown"
        assert "..." not in done.out.partition("Commands:")[2], "a line of the list is cut"


def test_no_flag_is_there_twice() -> None:
    """With two the later one would replace the other one."""

    def check(command: click.Command, path: str) -> None:
        flags = [flag for option in command.params for flag in (*option.opts, *option.secondary_opts)]
        assert len(flags) == len(set(flags)), (path, sorted(flag for flag in flags if flags.count(flag) > 1))
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                check(below, f"{path} {name}")

    check(main.cli, "lbagent")


def test_times_have_units_in_help(lb: Run) -> None:
    text = " ".join(lb("agent", "--help").out.split())
    for key, default in (("timeout-new", 60), ("timeout-tcp", 8000), ("resync-interval", 60), ("sweep-interval", 10)):
        assert f"--{key} SECONDS Seconds " in text
        assert f"[default: {default} s]" in text
    assert "--reject-rate N " in text


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("svcs list", "'svc'"),
        ("svc lst", "list"),
        ("svc list --out json", "--output"),
        ("svc list -o xml", "xml"),
        ("svc get", "NAMESPACE/NAME"),
        ("svc get a/b/c", "NAMESPACE/NAME"),
        ("backend get", "ADDRESS"),
        ("backend set-state", "STATE"),
        ("backend set-state 10.0.0.1:80", "one state"),
        ("backend set-state active maintenance", "addresses"),
        ("backend set-state 10.0.0.1:80 down", "'down'"),
        ("backend set-state 10.0.0.1:80 active 10.0.0.2:80", "one state"),
        ("status --wait soon", "'soon'"),
        ("agent --snat-ports 5", "--snat-ports"),
        ("agent --snat-address 10.0.0.300", "10.0.0.300"),
        ("agent --config /no/such/file", "/no/such/file"),
        ("agent --attach sideways", "sideways"),
        ("config check --node-ip x", "node-ip"),
        ("plan", "--manifests"),
        ("plan -f /no/such/folder", "/no/such/folder"),
        ("plan -f . --maglev-table-size 7", "16381"),
        ("plan -f . --node-ip x", "node-ip"),
        ("completion tcsh", "tcsh"),
    ],
)
def test_usage_errors_end_with_two(lb: Run, no_agent: None, command: str, hint: str) -> None:
    """Exit code 2, a helpful message, no traceback, nothing on stdout."""
    done = lb(*command.split())
    assert done.code == 2
    assert hint in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    "command",
    [
        "svc list",
        "svc list -w",
        "svc get a/b",
        "backend list",
        "backend get 10.0.0.1:80",
        "backend set-state active 10.0.0.1:80",
        "metrics",
        "status",
    ],
)
def test_no_agent_ends_with_five(lb: Run, no_agent: None, command: str) -> None:
    done = lb(*command.split())
    assert done.code == 5
    assert done.err.startswith("error: no agent answers on unix://")
    assert len(done.err.splitlines()) == 1


def test_map_dump_without_maps(lb: Run, no_agent: None, tmp_path: Path) -> None:
    done = lb("map", "dump")
    assert done.code == 3
    assert str(tmp_path / "none") in done.err
    assert len(done.err.splitlines()) == 1


def test_no_rights_end_with_one(tmp_path: Path) -> None:
    """A socket without permission to open it: the command runs as user 65534."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    directory = tmp_path / "closed"
    directory.mkdir(mode=0o700)
    script = f"import os; os.setuid(65534); from lbagent.cli.main import main; main(['svc', 'list', '--socket', '{directory}/a.sock'])"
    code = "import lbagent.cli.verbs.svc, lbagent.cli.main; " + script  # loaded before the rights are dropped
    done = python("-c", code)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no permission to open")
    assert len(done.stderr.splitlines()) == 1


def test_errors_out_of_a_task_group(lb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence and its code, for any depth of the group; a defect in the same group is not hidden."""
    from lbagent.api import client

    def fail(*errors: Exception) -> None:
        def request(*_: object) -> None:
            raise ExceptionGroup("tasks", [ExceptionGroup("more", list(errors))])

        monkeypatch.setattr(client.AgentClient, "_request", request)

    fail(NotFound("no device nodev0"))
    assert lb("status") == (3, "", "error: no device nodev0\n")
    fail(NotFound("no device nodev0"), ZeroDivisionError("division by zero"))
    done = lb("status")
    assert done.code == 1
    assert done.err.startswith("error: this is a defect of lbagent (ZeroDivisionError")


def test_debug_shows_the_traceback(lb: Run, no_agent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LBAGENT_DEBUG", "1")
    done = lb("svc", "list")
    assert done.code == 5
    assert "Traceback" in done.err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["svc", "list"], ["svc", "list", "--help"], ["--help"]])
def test_a_reader_that_has_enough(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, words: list[str], unbuffered: str
) -> None:
    """`lbagent svc list | head -1` ends without a message: much has been read, or nothing."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    agent.advance(agent.current.services[1:2] * 5000)
    with subprocess.Popen(
        [sys.executable, "-m", "lbagent", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if words == ["svc", "list"]:
            assert process.stdout.readline().startswith("ID")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 0


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete "), ("zsh", "#compdef lbagent"), ("fish", "complete ")])
def test_completion_scripts(lb: Run, shell: str, word: str) -> None:
    done = lb("completion", shell)
    assert done.code == 0
    assert word in done.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("lbagent svc get sh", ["shop/web"]),
        ("lbagent backend set-state ", ["active", "maintenance", "10.0.0.9:8080/TCP"]),
        ("lbagent backend drain 10.0.0.5", ["10.0.0.53:53/UDP"]),
        ("lbagent cl", ["cleanup"]),
        ("lbagent flow list --service sh", ["shop/web"]),
        ("lbagent flow count --backend 10.0.0.5", ["10.0.0.53:53/UDP"]),
        ("lbagent flow delete --frontend 10.96", ["10.96.0.10:80/TCP"]),
        ("lbagent flow get 192.0.2.1:1 10.96", ["10.96.0.10:80/TCP"]),
    ],
)
def test_completion_of_names(agent: Agent, words: str, expected: list[str]) -> None:
    """The completions are the agent's objects."""
    env = os.environ | {
        "_LBAGENT_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    script = "from lbagent.cli.main import cli; cli(prog_name='lbagent')"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    offered = [line.partition(",")[2] for line in done.stdout.splitlines()]
    assert set(expected) <= set(offered)


def test_a_file_that_is_not_there_inside_a_task_group(lb: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An OSError from the agent's tasks is one sentence: the file and the problem."""
    missing = tmp_path / "none.json"

    def failing(_flags: object) -> None:
        try:
            missing.read_bytes()
        except OSError as error:
            raise ExceptionGroup("tasks", [ExceptionGroup("inner", [error])]) from None

    monkeypatch.setattr("lbagent.cli.verbs.config.from_flags", failing)
    assert lb("config", "check") == (1, "", f"error: {missing}: No such file or directory\n")


def test_a_defect_is_one_sentence_that_says_where(lb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of lbagent: no traceback, and enough in the sentence to find it."""

    def failing(_flags: object) -> None:
        raise ExceptionGroup("tasks", [LbError("x"), ValueError("two\nlines")])

    monkeypatch.setattr("lbagent.cli.verbs.config.from_flags", failing)
    done = lb("config", "check")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: this is a defect of lbagent (ValueError")
    assert "two lines" in done.err
    assert "LBAGENT_DEBUG=1" in done.err
    assert len(done.err.splitlines()) == 1
    monkeypatch.setenv("LBAGENT_DEBUG", "1")
    assert "Traceback" in lb("config", "check").err
