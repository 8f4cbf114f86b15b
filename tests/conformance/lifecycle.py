"""Requests during an update, deletion, reinstallation and removal of the DaemonSet: by servers and clients in Pods.

They run in the agent's image, since other images may be missing on the nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import yaml

from tests.conformance.daemonset_agents import NAME, NAMESPACE, PINS, DaemonSetAgents
from tests.lab.netns import LabError, wait_for

NODE_PORT = 30777
PAUSE_S, SETTLE_S, DELETED_S = 0.1, 3.0, 15.0
READY_S = 120
REFUSED = 4  # exit code of `lbagent cleanup` while an agent runs

SERVER = """
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 128
Server(("", 8080), Echo).serve_forever()
"""
# Prints how many requests there were, how many failed, how many open connections broke, how many requests lost a packet.
CLIENT = f"""
import os, socket, time
targets = (os.environ["ECHO_SERVICE_HOST"], 80), (os.environ["HOST_IP"], {NODE_PORT})
kept, counts = {{}}, [0, 0, 0, 0]
def echo(connection):
    connection.sendall(b"x\\n")
    if connection.recv(9) != b"x\\n":
        raise OSError("closed")
def new(target):
    began = time.monotonic()
    counts[0] += 1
    try:
        with socket.create_connection(target, 5) as connection:
            echo(connection)
    except OSError as error:
        counts[1] += 1
        print(target, error)
    counts[3] += time.monotonic() - began > 0.9  # a SYN is sent again after 1 s
def old(target):
    try:
        if target not in kept:
            kept[target] = socket.create_connection(target, 5)
        echo(kept[target])
    except OSError as error:
        counts[2] += 1
        print(target, "open connection:", error)
        kept.pop(target, None)
while True:
    for target in targets:
        new(target)
        old(target)
    print(*counts, flush=True)
    time.sleep({PAUSE_S})
"""


def _pod(image: str, code: str, **spec: Any) -> dict[str, Any]:
    container = {
        "name": "main", "image": image, "command": ["python3", "-c", code],
        "env": [{"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
    }  # fmt: skip
    return {
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        **spec,
    }


def _workload(kind: str, name: str, pod: dict[str, Any], **spec: Any) -> dict[str, Any]:
    labels = {"app": name, "of": "lifecycle"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "labels": labels},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template, **spec},
    }  # fmt: skip


def objects(image: str) -> list[dict[str, Any]]:
    """Return servers behind a Service, and clients on each node: Pods, and processes of the node."""
    ports = [{"port": 80, "targetPort": 8080, "nodePort": NODE_PORT}]
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "echo", "labels": {"of": "lifecycle"}},
        "spec": {"type": "NodePort", "selector": {"app": "echo"}, "ports": ports},
    }  # fmt: skip
    return [
        service,
        _workload("Deployment", "echo", _pod(image, SERVER), replicas=3),
        _workload("DaemonSet", "client-pod", _pod(image, CLIENT)),
        _workload("DaemonSet", "client-node", _pod(image, CLIENT, hostNetwork=True)),
    ]


class Counts(NamedTuple):
    """The results of the clients."""

    requests: int
    failed: int
    broken: int
    slow: int

    @classmethod
    def read(cls, text: str) -> Counts:
        """Add up the last lines of all clients."""
        rows = [[int(word) for word in line.split()] for line in text.splitlines() if line.replace(" ", "").isdigit()]
        return cls(*map(sum, zip(*rows, strict=True))) if rows else cls(0, 0, 0, 0)

    def since(self, before: Counts) -> Counts:
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {self.failed} failed, {self.slow} took more than 0.9 s;"
            f" {self.broken} open connections broke"
        )


class Lifecycle:
    """One run of all steps; the agents are installed before, and removed afterwards."""

    def __init__(self, agents: DaemonSetAgents, say: Callable[[str], None]) -> None:
        self.agents, self.cluster, self.say = agents, agents.cluster, say
        self.ok = True

    def run(self) -> bool:
        """Print the effects of each step on requests, and return whether all are as expected."""
        self.cluster.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects(self.agents.image)))
        for name in ("deployment/echo", "daemonset/client-pod", "daemonset/client-node"):
            self.cluster.kubectl("rollout", "status", name, f"--timeout={READY_S}s")
        wait_for(lambda: self._counts().requests, "the clients' first requests", READY_S, 1.0)
        try:
            self._step("no change", lambda: None)
            self._step("rollout restart", self._restart)
            self._step("delete daemonset", self._delete)
            self._step("apply again", self.agents.apply)
            self._step("cleanup while agents run", self._refused_cleanup)
            self._step("removed", self.agents.remove, works=False)
            self.agents.apply()
            self._step("installed again", lambda: None)
        finally:
            self.cluster.kubectl("delete", "service,deployment,daemonset", "-l", "of=lifecycle")
        return self.ok

    def _step(self, name: str, action: Callable[[], object], *, works: bool = True) -> None:
        before = self._counts()
        action()
        time.sleep(SETTLE_S)
        met = self._counts().since(before)
        good = bool(met.requests) and works == (not met.failed and not met.broken)
        self.ok = self.ok and good
        self.say(f"{'PASS' if good else 'FAIL'} {name}: {met}")

    def _counts(self) -> Counts:
        words = ("logs", "--tail=1", "--max-log-requests=100", "-l", "of=lifecycle,app in (client-pod, client-node)")
        return Counts.read(self.cluster.kubectl(*words))

    def _restart(self) -> None:
        self.cluster.kubectl("-n", NAMESPACE, "rollout", "restart", f"daemonset/{NAME}")
        self.agents.rolled_out(NAME)

    def _delete(self) -> None:
        self.cluster.kubectl("-n", NAMESPACE, "delete", "daemonset", NAME, "--cascade=foreground")
        self._expect(self.agents.with_pins() == self.cluster.nodes, f"{PINS} is gone from a node")
        time.sleep(DELETED_S)

    def _refused_cleanup(self) -> None:
        self.agents.apply_cleanup()

        def codes() -> Sequence[int]:
            words = ("-n", NAMESPACE, "get", "pods", "-l", f"app.kubernetes.io/name={NAME}-cleanup")
            states = [
                each
                for pod in self.cluster.json(*words)["items"]
                for each in pod["status"].get("initContainerStatuses", [])
            ]
            ended = [
                each.get("state", {}).get("terminated") or each.get("lastState", {}).get("terminated")
                for each in states
            ]
            found = [each["exitCode"] for each in ended if each]
            return found if len(found) == len(self.cluster.nodes) else []

        try:
            found = wait_for(codes, "the cleanup's refusal", READY_S, 1.0)
        finally:
            self.agents.delete_cleanup()
        self._expect(set(found) == {REFUSED}, f"exit codes of cleanup while agents run: {found}")

    def _expect(self, good: bool, otherwise: str) -> None:
        if not good:
            raise LabError(otherwise)
