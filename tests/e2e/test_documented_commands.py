"""The commands that docs/from-other-tools.md and chapters of docs/operations.md name do what the text has, on a node that serves."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import NODE, VIP4, Cluster
from tests.e2e.conftest import opened
from tests.lab import traffic

DOCS = Path(__file__).resolve().parents[2] / "docs"
OPERATIONS = (DOCS / "operations.md").read_text()
BACKEND = "10.77.1.2"  # b1
# what the documents have as examples -> what is there in this laboratory
NAMES = {"10.0.1.3": BACKEND, "shop/web": "e2e/web", "node-1": NODE}
EXIT_CODES = {"--expect drop": 1, "lbagent cleanup": 4}  # nothing is dropped; an agent runs
OF_A_CRASH = "After a crash"
ENDLESS = ("capture", "monitor")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with opened("xdp", ["--timeout-closing", "1", "--timeout-new", "5"]) as made:
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


def of_tables() -> list[str]:
    """Return the commands in the second column of the page for users of other tools."""
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|$", (DOCS / "from-other-tools.md").read_text(), re.MULTILINE)
    return [command for cell in rows for command in re.findall(r"`(lbagent [^`]*)`", cell)]


def of_chapter(title: str) -> list[str]:
    """Return the commands in the code of a chapter of docs/operations.md, without comments."""
    text = re.split(rf"^##+ {re.escape(title)}\n", OPERATIONS, flags=re.MULTILINE)[1]
    code = re.split(r"^##+ ", text, flags=re.MULTILINE)[0].split("```")[1::2]
    lines = [line.split("#")[0].strip() for block in code for line in block.splitlines()]
    return [line for line in lines if line.startswith("lbagent ")]


CHAPTERS = {title: of_chapter(title) for title in ("A packet was dropped", "Before a change", "Is the kernel right?")}
TABLES = list(dict.fromkeys(of_tables()))


def run(cluster: Cluster, command: str, *more: str) -> tuple[int, str]:
    """Run a documented command with a connection of its client; return the exit code and its output."""
    with cluster.client.call(traffic.connect, VIP4, 80) as sock:
        client, port = sock.getsockname()[:2]
        for word, here in (NAMES | {"192.0.2.7:40312": f"{client}:{port}", "192.0.2.7": client}).items():
            command = command.replace(word, here)
        command = re.sub(r"\b(web\.pcapng|node\.tar\.gz)", rf"{cluster.lab.folder}/\1", command)
        words = [str(cluster.folder) if word in ("DIR", "NEW-FOLDER") else word for word in shlex.split(command)[1:]]
        if words[:2] == ["backend", "drain"]:
            sock.close()
            words += ["--timeout", "20s", "--then", "reset"]  # a deleted flow may have begun again in its middle
        if words[0] in ENDLESS:
            return interrupted(cluster, words)
        done = cluster.agent.cli(*words, *more, check=False)
    if words[0] == "backend":
        cluster.agent.cli("backend", "clear-state", BACKEND)
    return done.returncode, done.stdout + done.stderr


def interrupted(cluster: Cluster, words: list[str]) -> tuple[int, str]:
    """Run a command until it is interrupted, as an operator does; return 0 if it ended by that, and its output."""
    process = cluster.agent.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    text, said = process.communicate(timeout=20)
    return (0 if process.returncode in (0, 130) else process.returncode), text + said


@pytest.mark.parametrize("command", TABLES)
def test_commands_for_users_of_other_tools(served: Cluster, command: str) -> None:
    code, text = run(served, command)
    wanted = next((code for words, code in EXIT_CODES.items() if words in command), 0)
    assert code == wanted, text
    assert text or "count" in command or "monitor" in command


def test_every_tool_has_its_table() -> None:
    text = (DOCS / "from-other-tools.md").read_text()
    tools = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert tools == ["cilium-dbg", "Hubble", "ipvsadm", "conntrack", "HAProxy's socket", "kube-proxy"]
    assert len(TABLES) > 25


@pytest.mark.parametrize(
    ("title", "command"), [(title, command) for title, commands in CHAPTERS.items() for command in commands]
)
def test_commands_of_a_chapter(served: Cluster, title: str, command: str) -> None:
    del title
    if "--max-lost" in command:
        served.agent.cli("flow", "delete", "--all")
    code, text = run(served, command)
    assert code == 0, text


def test_after_a_crash(cluster: Cluster) -> None:
    """The codes of the chapter while no agent runs, and after its start."""
    commands = of_chapter(OF_A_CRASH)
    restart = commands.index("lbagent status --wait 30s")
    cluster.agent.kill()
    offline = ("--bpffs", str(cluster.lab.bpffs))
    try:
        for command in commands[:restart]:
            more = offline if command in ("lbagent status", "lbagent verify") else ()
            code, text = run(cluster, command, *more)
            assert code == (5 if command == "lbagent status" else 0), (command, text)
            assert {"lbagent status": "still served", "lbagent map dump": VIP4}.get(command, "") in text, text
    finally:
        cluster.agent.start()
    for command in commands[restart:]:
        code, text = run(cluster, command)
        assert code == 0, (command, text)
    assert "start of the agent" in text
