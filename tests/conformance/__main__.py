"""`python -m tests.conformance --cluster FOLDER`: the e2e suite against agents in a real cluster. Exit code 0 only when all pass."""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import sys
import tempfile
from pathlib import Path

from tests.conformance import document, load_balancers, results
from tests.conformance.api_server_bind import ApiServerBind
from tests.conformance.daemonset_agents import DaemonSetAgents
from tests.conformance.lifecycle import Lifecycle
from tests.conformance.load_balancers import FOCUS as LOAD_BALANCERS
from tests.conformance.load_balancers import POOLS, LoadBalancers
from tests.conformance.node_agents import NodeAgents, ShadowAgents
from tests.conformance.node_cluster import NodeCluster
from tests.lab.netns import LabError

FOCUS = r"\[sig-network\]"
HOW = {"process": NodeAgents, "daemonset": DaemonSetAgents}  # how agents are started on the nodes


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--cluster", type=Path, required=True, help="folder of the cluster's scripts")
    parser.add_argument("--how", choices=sorted(HOW), default="process", help="how the agents get on the nodes")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--procs", type=int, default=12, help="tests at a time")
    parser.add_argument("--focus", default=FOCUS, help="tests whose title matches this regular expression")
    parser.add_argument("--kill", type=float, default=0.0, metavar="SECONDS", help="SIGKILL every agent so often")
    parser.add_argument("--agent", action="append", default=[], metavar="ARGUMENT", help="one more for every agent")
    parser.add_argument(
        "--lifecycle", action="store_true", help="in place of the suite: update, delete, install, remove"
    )
    parser.add_argument(
        "--load-balancers", choices=sorted(POOLS), default="", help="run that group: addresses of pools, announced so"
    )
    parser.add_argument(
        "--apilb",
        action="store_true",
        help="in place of the suite: a kubelet and kubectl by native pools, API server killed",
    )
    parser.add_argument(
        "--shadow", action="store_true", help="kube-proxy serves, and agents with --shadow compare: print their reports"
    )
    parser.add_argument("--times", type=int, default=1, help="runs of the suite, on one cluster")
    parser.add_argument("--document", action="store_true", help="write the last run into docs/conformance.md")
    parser.add_argument("--use", metavar="KUBECONFIG", help="of a cluster that is up already, and stays so")
    given = parser.parse_args()
    if given.lifecycle and given.how != "daemonset":
        parser.error("--lifecycle is of --how daemonset")
    if given.shadow and (given.how != "process" or given.load_balancers or given.apilb):
        parser.error("--shadow is of --how process and the suite")
    if given.load_balancers:
        if given.how != "process":
            parser.error("--load-balancers is of --how process")
        given.focus = LOAD_BALANCERS if given.focus == FOCUS else given.focus
    return given


def say(text: str) -> None:
    print(text, flush=True)


def run(options: argparse.Namespace, cluster: NodeCluster, folder: Path) -> bool:
    """Install the agents, run the suite, print the findings."""
    at, ok = document.commit(), True
    parts = LoadBalancers(cluster, folder, options.load_balancers) if options.load_balancers else None
    expected = load_balancers.TITLES if parts else results.baseline((options.cluster / "baseline.txt").read_text())
    expected = [title for title in expected if re.search(options.focus, title)]
    more = [*options.agent, *(parts.agent_arguments if parts else [])]
    agents = ShadowAgents(cluster, folder, more) if options.shadow else HOW[options.how](cluster, folder, more)
    try:
        if parts:
            parts.give_rights()
        agents.install()
        if parts:
            parts.start()
        cluster.wait_dns()
        if isinstance(agents, DaemonSetAgents) and options.lifecycle:
            return Lifecycle(agents, say).run()
        agents.watch(options.kill, also=parts.restart if parts else None)
        say(f"the agents' logs: {folder}")
        for _ in range(options.times):
            seen = results.read(
                cluster.suite(options.focus, options.procs, say, load_balancers.SKIP if parts else ""), expected
            )
            say(seen.text())
            ok = ok and seen.ok
        for line in [*agents.report(), *(parts.report() if parts else [])]:
            say(line)
    finally:
        agents.stop()
        if parts:
            parts.stop()
    if options.document and options.focus in (FOCUS, LOAD_BALANCERS):
        name = f"LoadBalancers, {options.load_balancers}" if parts else options.how
        name += (f", `{' '.join(options.agent)}`" if options.agent else "") + (
            ", `--shadow` beside kube-proxy" if options.shadow else ""
        )
        name += f", killed each {options.kill:g} s" if options.kill else ""
        document.write(document.row(name, seen, len(cluster.nodes), options.procs, at))
    return ok


def end(number: int, _frame: object) -> None:
    """Exit after the clean-up."""
    raise SystemExit(128 + number)


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, end)
    cluster = NodeCluster(options.cluster)
    folder = Path(tempfile.mkdtemp(prefix="lbagent-conformance-"))
    with contextlib.ExitStack() as closing:
        if options.use:
            cluster.adopt(options.use)
        else:
            closing.callback(cluster.down)
            proxy = "kube-proxy" if options.shadow else "none"
            cluster.up(options.nodes, dual_stack=not options.load_balancers, proxy=proxy)
        if options.apilb:
            say(f"the logs: {folder}")
            return 0 if ApiServerBind(cluster, folder, options.agent, say).run() else 1
        return 0 if run(options, cluster, folder) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"{error}")
