#!/usr/bin/env python3
"""`kubectl lbagent`: runs a verb of lbagent in the agent's Pod of a node, or of every node.

One file that needs nothing but Python and kubectl: the package installs it as `kubectl-lbagent`, and a copy of it with this name
in a folder of PATH works on a machine without lbagent. Nothing goes through a shell: the words of the verb are those of `kubectl
exec`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn

SELECTOR = "app.kubernetes.io/name=lbagent"  # of the agents' Pods: deploy/kubernetes, the chart
CONTAINER = "lbagent"
AT_ONCE = 16  # nodes that are asked at a time
TIMEOUT_S = 30.0  # for the answer of one of several nodes
FAILED, USAGE, NOT_FOUND, UNREACHABLE, INTERRUPTED = 1, 2, 3, 5, 130
GAP = "   "
OWN_NODE = "on_node"  # a row's own key `node`, in a list of several nodes


class PluginError(Exception):
    """One sentence for the operator, and the exit code."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Kubectl(NamedTuple):
    """How kubectl is called."""

    options: Sequence[str] = ()  # --context, --kubeconfig
    namespace: str = ""  # '': every one
    selector: str = SELECTOR
    container: str = CONTAINER

    def get(self) -> list[str]:
        """Return the argv that lists the agents' Pods."""
        scope = ["--namespace", self.namespace] if self.namespace else ["--all-namespaces"]
        return ["kubectl", *self.options, "get", "pods", *scope, "--selector", self.selector, "--output", "json"]

    def exec(self, pod: AgentPod, words: Sequence[str], *flags: str) -> list[str]:
        """Return the argv that runs a verb in a Pod."""
        where = ["--namespace", pod.namespace, pod.name, "--container", self.container]
        return ["kubectl", *self.options, "exec", *flags, *where, "--", "lbagent", *words]


class AgentPod(NamedTuple):
    """The agent's Pod of a node."""

    node: str
    namespace: str
    name: str
    problem: str  # why it cannot be asked; ''


def agent_pods(document: Any) -> dict[str, AgentPod]:
    """Return the Pod of each node, from the JSON of a PodList; of several one that runs and stays.

    Raises PluginError where such Pods of several namespaces run on one node: anyone may label a Pod.
    """
    found: dict[str, AgentPod] = {}
    spaces: dict[str, set[str]] = {}  # by node: namespaces of Pods that run
    for item in document.get("items") or ():
        meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
        if not (node := spec.get("nodeName")):
            continue
        phase = status.get("phase") or "Unknown"
        problem = "" if phase == "Running" else f"its agent's Pod is {phase}"
        if meta.get("deletionTimestamp"):
            problem = "its agent's Pod is being deleted"
        if not problem:
            spaces.setdefault(node, set()).add(meta.get("namespace", "default"))
        if node not in found or (found[node].problem and not problem):
            found[node] = AgentPod(node, meta.get("namespace", "default"), meta["name"], problem)
    for node, names in spaces.items():
        if len(names) > 1:
            shown = ", ".join(sorted(names))
            raise PluginError(
                USAGE, f"node {node} has Pods with the agent's labels in several namespaces: {shown}; give -n"
            )
    return dict(sorted(found.items()))


def listed_pods(kubectl: Kubectl) -> dict[str, AgentPod]:
    """List the agents' Pods. Raises PluginError."""
    done = _run(kubectl.get(), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise PluginError(UNREACHABLE, f"the agents' Pods cannot be listed: {_last_line(done.stderr)}")
    try:
        return agent_pods(json.loads(done.stdout))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise PluginError(UNREACHABLE, "kubectl's list of Pods cannot be read") from None


def pod_of(pods: dict[str, AgentPod], node: str) -> AgentPod:
    """Return the Pod of a node. Raises PluginError."""
    if node not in pods:
        known = f"those with an agent: {', '.join(pods)}" if pods else "no node has one"
        raise PluginError(NOT_FOUND, f"no agent runs on node {node}; {known}")
    if pods[node].problem:
        raise PluginError(UNREACHABLE, f"node {node}: {pods[node].problem}")
    return pods[node]


def run_on_node(kubectl: Kubectl, node: str, words: Sequence[str], given: bytes | None = None) -> int:
    """Run a verb in the Pod of a node with this process's streams, or `given` as its stdin; return its exit code.

    Raises PluginError.
    """
    pod = pod_of(listed_pods(kubectl), node)
    if given is not None:
        return _run(kubectl.exec(pod, words, "--stdin"), input=given).returncode
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    flags = ["--stdin", "--tty"] if is_terminal else ["--stdin"] if _reads_stdin(words) else []
    return _run(kubectl.exec(pod, words, *flags), stdin=None if flags else subprocess.DEVNULL).returncode


# --- all nodes ---


class Answer(NamedTuple):
    """What a verb printed on a node."""

    node: str
    code: int
    out: str
    err: str


def run_on_all(kubectl: Kubectl, words: Sequence[str], timeout_s: float) -> int:
    """Run a verb on every node and print one list of what it printed; return the exit code. Raises PluginError."""
    if (form := form_of(words)) == "yaml":
        raise PluginError(USAGE, "--all-nodes makes no list of YAML; give -o json")
    pods = listed_pods(kubectl)
    if not pods:
        raise PluginError(NOT_FOUND, "no node has an agent")
    given = sys.stdin.buffer.read() if _reads_stdin(words) else b""

    def ask(pod: AgentPod) -> Answer:
        if pod.problem:
            return Answer(pod.node, UNREACHABLE, "", pod.problem)
        argv = kubectl.exec(pod, words, *(["--stdin"] if given else []))
        try:
            done = _run(argv, input=given, capture_output=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Answer(pod.node, FAILED, "", f"no answer within {timeout_s:g} s")
        return Answer(
            pod.node, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, pods.values()))
    if form == "json":
        answers = list(map(_only_json, answers))
    for line in merged([(each.node, each.out) for each in answers if each.out], form):
        print(printable(line))
    for each in answers:
        for line in each.err.splitlines():
            print(printable(f"{each.node}: {line}"), file=sys.stderr)
        if each.code and not each.err:
            print(f"{each.node}: exit {each.code}", file=sys.stderr)
    return FAILED if any(each.code for each in answers) else 0


def printable(line: str) -> str:
    """Return a line without control characters: what a node prints may be of a tenant, and this is a terminal."""
    return line if line.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def _only_json(answer: Answer) -> Answer:
    """Return the answer; one that is no JSON without it, and with its first line as the error."""
    try:
        _rows(answer.out)
    except ValueError:
        first = answer.out.strip().split("\n")[0]
        return answer._replace(out="", code=answer.code or FAILED, err=f"{answer.err}no JSON: {first}\n")
    return answer


def _reads_stdin(words: Sequence[str]) -> bool:
    return any(word == "-" or (word.startswith("-") and word.endswith("=-")) for word in words)


def form_of(words: Sequence[str]) -> str:
    """Return the value of -o among the words of a verb; '' without one."""
    for at, word in enumerate(words):
        if word in ("-o", "--output"):
            return words[at + 1] if at + 1 < len(words) else ""
        if word.startswith(("--output=", "-o")):
            return word.removeprefix("--output=").removeprefix("-o").removeprefix("=")
    return ""


def merged(outputs: Sequence[tuple[str, str]], form: str) -> list[str]:
    """Return the lines of one output, of each node's: JSON with a key `node`, tables and lines with a first column NODE.

    What a row has under that name itself is then `on_node` and ON-NODE: the node of a backend, not the one that answered.
    """
    if form == "json":
        return _merged_json(outputs)
    if form in ("", "table", "wide") and (lines := _merged_tables(outputs)):
        return lines
    return _lines((node, line) for node, text in outputs for line in text.splitlines())


def _merged_json(outputs: Iterable[tuple[str, str]]) -> list[str]:
    """Return a list of all rows, or a line for each where a node printed lines. Raises ValueError."""
    rows: list[dict[str, Any]] = []
    are_lines = False
    for node, text in outputs:
        found, is_lines = _rows(text)
        are_lines = are_lines or is_lines
        rows += [{"node": node, **_renamed(row)} for row in found]
    return [json.dumps(row) for row in rows] if are_lines else json.dumps(rows, indent=2).split("\n")


def _rows(text: str) -> tuple[list[Any], bool]:
    """Return the rows of one node's JSON, and whether each has a line of its own. Raises ValueError."""
    try:
        found = json.loads(text) if text.strip() else []
    except ValueError:
        return [json.loads(line) for line in text.splitlines()], True
    return (found if isinstance(found, list) else [found]), False


def _renamed(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        return {"value": row}
    return {OWN_NODE if key == "node" else key: value for key, value in row.items()}


def _merged_tables(outputs: Sequence[tuple[str, str]]) -> list[str]:
    """Return one table of tables with the same header; [] where they are no such tables."""
    tables = [(node, text.splitlines()) for node, text in outputs]
    cells = [(node, _cells(lines)) for node, lines in tables if lines]
    headers = [table[0] for _, table in cells]
    if not headers or any(header != headers[0] or header != list(map(str.upper, header)) for header in headers):
        return []
    own = ("ON-NODE" if name == "NODE" else name for name in headers[0])
    return _lines([("NODE", *own), *((node, *row) for node, table in cells for row in table[1:])])


def _cells(lines: Sequence[str]) -> list[list[str]]:
    """Return the cells of a table: a column begins with a word of the header before which no line has a character."""
    header = lines[0]
    starts = [0] + [
        at
        for at in range(1, len(header))
        if header[at - 1] == " " != header[at] and all(line[at - 1 : at] in ("", " ") for line in lines)
    ]
    ends = [*starts[1:], None]
    return [[line[at:end].strip() for at, end in zip(starts, ends, strict=True)] for line in lines]


def _lines(rows: Iterable[Sequence[str]]) -> list[str]:
    rows = list(rows)
    width = max(map(len, rows), default=0)
    widths = [max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(width)]
    return [
        GAP.join(cell.ljust(size) for cell, size in zip(row, widths[: len(row)], strict=True)).rstrip() for row in rows
    ]


# --- processes ---


def _run(argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    try:
        return subprocess.run(argv, check=False, **options)
    except FileNotFoundError:
        raise PluginError(FAILED, "kubectl is not on PATH") from None
    except OSError as error:
        raise PluginError(FAILED, f"kubectl cannot be run: {error.strerror or error}") from None


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["kubectl gave no reason"])[-1]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise what the whole plug-in reports in one way."""
        raise PluginError(USAGE, f"{message}; kubectl lbagent --help")


def parser() -> argparse.ArgumentParser:
    """Return the options. What follows them is the verb."""
    made = _Parser(
        prog="kubectl lbagent",
        allow_abbrev=False,
        description="Run a verb of lbagent in the agent's Pod of a node: kubectl lbagent --node worker-1 flow list",
        epilog="Exit code: that of the verb. With --all-nodes 1 if a node does not answer, or its verb fails. "
        "2: wrong usage. 3: no such node. 5: the Pods cannot be listed, or the node's does not run.",
    )
    where = made.add_mutually_exclusive_group(required=True)
    where.add_argument("--node", metavar="NODE", help="run it on this node")
    where.add_argument("--all-nodes", action="store_true", help="run it on every node: one list with a column NODE")
    made.add_argument(
        "-n", "--namespace", default="", help="namespace of the agents' Pods (default: the one that has them)"
    )
    made.add_argument("-l", "--selector", default=SELECTOR, help="labels of the agents' Pods (%(default)s)")
    made.add_argument("-c", "--container", default=CONTAINER, help="container of the agent (%(default)s)")
    made.add_argument("--context", default="", help="context of kubectl's configuration")
    made.add_argument("--kubeconfig", default="", metavar="FILE", help="kubectl's configuration")
    made.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help="of a node, with --all-nodes (%(default)g)"
    )
    made.add_argument("verb", nargs=argparse.REMAINDER, metavar="VERB …", help="verb of lbagent with its options")
    return made


def global_options(context: str, kubeconfig: str) -> list[str]:
    """Return the words that name the cluster kubectl uses."""
    given = {"context": context, "kubeconfig": kubeconfig}
    return [f"--{name}={value}" for name, value in given.items() if value]


def run(arguments: Sequence[str]) -> int:
    """Run the plug-in; return its exit code."""
    try:
        given = parser().parse_args(arguments)
        words = given.verb[1:] if given.verb[:1] == ["--"] else given.verb
        if not words:
            raise PluginError(USAGE, "give a verb of lbagent, as `flow list`; kubectl lbagent --help")
        kubectl = Kubectl(
            global_options(given.context, given.kubeconfig), given.namespace, given.selector, given.container
        )
        return run_on_all(kubectl, words, given.timeout) if given.all_nodes else run_on_node(kubectl, given.node, words)
    except PluginError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED


def main() -> None:
    """Run the plug-in and end the process."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
