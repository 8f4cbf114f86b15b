"""`kubectl lbagent` and `explain --from-node`, with agents of two nodes and a stand-in for kubectl that runs the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import Agent, served

STAND_IN = """#!{python}
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
given = sys.argv[1:]
with open(here + "/calls", "a") as calls:
    calls.write(json.dumps(given) + "\\n")
nodes = json.load(open(here + "/nodes.json"))
if "exec" not in given:
    print(open(here + "/pods.json").read())
    sys.exit(0)
at = given.index("--")
pod = given[given.index("--container") - 1]
if nodes[pod] == "silent":
    time.sleep(60)
if nodes[pod].startswith("print "):
    print(nodes[pod][6:])
    sys.exit(0)
if nodes[pod] == "gone":
    sys.exit("error: unable to upgrade connection: pod does not exist")
words = given[at + 1:]
if words[1] == "echo":
    print(json.dumps(words[2:]), sys.stdin.read() if "--stdin" in given else "")
    sys.exit(7)
assert words.pop(0) == "lbagent"
os.execve(sys.executable, [sys.executable, "-m", "lbagent", *words], {{**os.environ, "LBAGENT_SOCKET": nodes[pod]}})
"""


def pod(node: str, name: str, phase: str = "Running", **meta: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "kube-system", "name": name, **meta},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


class Cluster:
    """What the stand-in finds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods = [
            pod("one", "old", "Running", deletionTimestamp="2026-01-01T00:00:00Z"),
            pod("one", "agent-1"),
            pod("two", "agent-2"),
            pod("two", "failed", "Failed"),
        ]
        self.nodes: dict[str, str] = {}
        kubectl = folder / "kubectl"
        kubectl.write_text(STAND_IN.format(python=sys.executable))
        kubectl.chmod(0o755)

    def run(self, *words: str, stdin: str = "", program: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        (self.folder / "pods.json").write_text(json.dumps({"items": self.pods}))
        (self.folder / "nodes.json").write_text(json.dumps(self.nodes))
        argv = [*(program or (sys.executable, "-m", "lbagent.cli.kubectl_plugin")), *words]
        env = {**os.environ, "PATH": str(self.folder)}  # nothing but the stand-in
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, env=env, check=False, timeout=60)

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    with served(Agent(), tmp_path / "one.sock"), served(Agent(), tmp_path / "two.sock"):
        made.nodes = {"agent-1": str(tmp_path / "one.sock"), "agent-2": str(tmp_path / "two.sock")}
        yield made


def test_a_verb_runs_in_the_pod_of_the_node(cluster: Cluster) -> None:
    done = cluster.run("--context", "blue", "--node", "one", "svc", "list", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    frontends = {row["frontend"] for row in json.loads(done.stdout)}
    assert frontends
    listing, running = cluster.calls()
    label = "app.kubernetes.io/name=lbagent"
    assert listing == ["--context=blue", "get", "pods", "--all-namespaces", "--selector", label, "--output", "json"]
    assert running == [
        "--context=blue", "exec", "--namespace", "kube-system", "agent-1", "--container", "lbagent",
        "--", "lbagent", "svc", "list", "-o", "json",
    ]  # fmt: skip


def test_the_exit_code_and_every_word_are_the_verbs(cluster: Cluster) -> None:
    words = ["a b; touch x", "$(id)", "--node", "two", "--pcap=-"]
    done = cluster.run("--node", "one", "echo", *words, stdin="the input")
    assert done.returncode == 7
    assert done.stdout == f"{json.dumps(words)} the input\n"
    assert cluster.run("--node", "one", "svc", "get", "192.0.2.99").returncode == 3


def test_all_nodes_make_one_table(cluster: Cluster) -> None:
    alone = cluster.run("--node", "one", "svc", "list").stdout.splitlines()
    done = cluster.run("--all-nodes", "svc", "list")
    assert (done.returncode, done.stderr) == (0, "")
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["NODE", *alone[0].split()]
    assert [row.split() for row in rows] == [[node, *row.split()] for node in ("one", "two") for row in alone[1:]]
    at = header.index("FRONTEND")
    assert all(row[at - 1] == " " != row[at] for row in rows)


def test_all_nodes_make_one_list_of_json_and_of_names(cluster: Cluster) -> None:
    found = json.loads(cluster.run("--all-nodes", "svc", "list", "-o", "json").stdout)
    assert [row["node"] for row in found] == ["one"] * (len(found) // 2) + ["two"] * (len(found) // 2)
    assert all(row["frontend"] for row in found)
    names = cluster.run("--all-nodes", "svc", "list", "-oname").stdout.split("\n")
    assert names[0].split()[0] == "one"


def test_the_operator_says_where_the_pods_are(cluster: Cluster) -> None:
    words = ("--kubeconfig", "k", "-n", "lb", "-l", "app=x", "-c", "main", "--node", "one", "echo")
    assert cluster.run(*words).returncode == 7
    listing, running = cluster.calls()
    assert listing == [
        "--kubeconfig=k", "get", "pods", "--namespace", "lb", "--selector", "app=x", "--output", "json",
    ]  # fmt: skip
    assert running[running.index("--container") + 1] == "main"


@pytest.mark.parametrize("words", [("--node", "one"), ("--all-nodes",)])
def test_a_pod_of_a_tenant_with_the_labels_is_not_asked(cluster: Cluster, words: tuple[str, ...]) -> None:
    """Also where the list has it first. With the namespace, and where it does not run, the agent is asked."""
    other = pod("one", "agent-2", namespace="tenant")
    cluster.pods.insert(0, other)
    done = cluster.run(*words, "svc", "list")
    assert done.returncode == 2
    assert "node one has Pods with the agent's labels in several namespaces: kube-system, tenant" in done.stderr
    assert not [call for call in cluster.calls() if "exec" in call]
    other["status"]["phase"] = "Succeeded"
    assert cluster.run(*words, "svc", "list").returncode == 0
    assert next(call[2] for call in cluster.calls() if "exec" in call) == "kube-system"


def test_rows_with_a_node_of_their_own_have_both(cluster: Cluster) -> None:
    for pod_name, place in (("agent-1", "x"), ("agent-2", "y")):
        cluster.nodes[pod_name] = "print " + json.dumps([{"address": "10.0.0.1:80", "node": place}])
    found = json.loads(cluster.run("--all-nodes", "backend", "list", "-o", "json").stdout)
    assert found == [
        {"node": "one", "address": "10.0.0.1:80", "on_node": "x"}, {"node": "two", "address": "10.0.0.1:80", "on_node": "y"},
    ]  # fmt: skip
    cluster.nodes |= {"agent-1": "print ADDRESS   NODE\n10.0.0.1   x", "agent-2": "print ADDRESS   NODE\n10.0.0.2   y"}
    for form in ((), ("-o", "wide")):
        lines = cluster.run("--all-nodes", "backend", "list", *form).stdout.splitlines()
        assert [line.split() for line in lines] == [
            ["NODE", "ADDRESS", "ON-NODE"], ["one", "10.0.0.1", "x"], ["two", "10.0.0.2", "y"],
        ]  # fmt: skip


def test_what_is_no_json_is_an_error_of_its_node(cluster: Cluster) -> None:
    cluster.nodes["agent-1"] = "print something went wrong\nmore"
    done = cluster.run("--all-nodes", "svc", "list", "-o", "json")
    assert {row["node"] for row in json.loads(done.stdout)} == {"two"}
    assert (done.returncode, done.stderr) == (1, "one: no JSON: something went wrong\n")


def test_no_node_writes_to_the_terminal(cluster: Cluster) -> None:
    cluster.nodes |= {"agent-1": "print NAME\n\x1b]0;title\x07web", "agent-2": "print \x1b[2J"}
    done = cluster.run("--all-nodes", "svc", "list")
    assert "\x1b" not in done.stdout + done.stderr
    assert "\\x1b]0;title\\x07web" in done.stdout


@pytest.mark.parametrize("trouble", ["silent", "gone"])
def test_a_node_that_does_not_answer_is_named(cluster: Cluster, trouble: str) -> None:
    cluster.nodes["agent-1"] = trouble
    cluster.pods.append(pod("three", "agent-3", "Pending"))
    done = cluster.run("--timeout", "3", "--all-nodes", "svc", "list")
    assert done.returncode == 1
    assert {line.split()[0] for line in done.stdout.splitlines()[1:]} == {"two"}
    first, second = done.stderr.splitlines()
    assert first.startswith("one: ")
    assert second == "three: its agent's Pod is Pending"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("svc", "list"), 2, "one of the arguments --node --all-nodes is required"),
        (("--node", "one"), 2, "give a verb of lbagent"),
        (("--all-nodes", "svc", "list", "-o", "yaml"), 2, "--all-nodes makes no list of YAML"),
        (("--node", "four", "svc", "list"), 3, "no agent runs on node four; those with an agent: one, two"),
    ],
)
def test_wrong_usage_is_one_sentence(cluster: Cluster, words: tuple[str, ...], code: int, sentence: str) -> None:
    done = cluster.run(*words)
    assert done.returncode == code
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1


def test_without_kubectl_or_its_answer(cluster: Cluster) -> None:
    (cluster.folder / "kubectl").write_text("#!/bin/sh\necho 'The connection was refused' >&2\nexit 1\n")
    done = cluster.run("--node", "one", "svc", "list")
    assert (done.returncode, done.stderr) == (
        5,
        "error: the agents' Pods cannot be listed: The connection was refused\n",
    )
    (cluster.folder / "kubectl").write_text("#!/bin/sh\necho '[1]'\n")
    assert cluster.run("--node", "one", "svc", "list").returncode == 5


def test_a_kubectl_that_cannot_be_run(cluster: Cluster) -> None:
    (cluster.folder / "kubectl").write_bytes(b"\x7fELF")
    done = cluster.run("--node", "one", "svc", "list")
    assert (done.returncode, done.stderr) == (1, "error: kubectl cannot be run: Exec format error\n")
    (cluster.folder / "kubectl").unlink()
    assert cluster.run("--node", "one", "svc", "list").stderr == "error: kubectl is not on PATH\n"


def test_explain_asks_the_agent_of_a_node(cluster: Cluster) -> None:
    manifests = cluster.folder / "web.yaml"
    manifests.write_text("kind: Service\n")
    program = (sys.executable, "-m", "lbagent")
    cluster.run(
        "explain", "10.0.0.1:1000", "10.96.0.1:80/UDP", "-f", str(manifests), "--from-node", "two", program=program
    )
    running = cluster.calls()[-1]
    assert running[:3] == ["exec", "--stdin", "--namespace"]
    assert running[running.index("--") + 1 :] == [
        "lbagent", "explain", "10.0.0.1:1000", "10.96.0.1:80/UDP", "-f", "-", "--flags=S", "--output=text",
    ]  # fmt: skip
    done = cluster.run("explain", "10.0.0.1:1000", "10.96.0.1:80", "--from-node", "nine", program=program)
    assert done.returncode == 3
    packet = ("explain", "10.0.0.1:1000", "10.96.0.1:80")
    cluster.run(*packet, "--from-node", "one", "--context", "blue", "-n", "lb", program=program)
    listing, running = cluster.calls()[-2:]
    assert listing[:5] == ["--context=blue", "get", "pods", "--namespace", "lb"]
    assert running[:2] == ["--context=blue", "exec"]
    assert cluster.run(*packet, "--context", "blue", program=program).returncode == 2
