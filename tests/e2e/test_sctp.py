"""SCTP on real traffic: clients and servers have a stack of their own (usrsctp), as the kernel may have none."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.lab.debian_packages import USRSCTP, unpacked
from tests.lab.manifests import Manifest, put
from tests.lab.netns import Namespace, wait_for
from tests.lab.topology import end

Fresh = Callable[..., Cluster]
VIPS = ("10.96.0.132", "fd00:96::132")
PORT, TARGET_PORT, NODE_PORT, HOST_PORT = 5060, 9899, 31132, 8132
HOST_PORT_POD = f"""
apiVersion: v1
kind: Pod
metadata: {{name: b3, namespace: e2e}}
spec:
  nodeName: demo-node
  containers: [{{name: c, image: none, ports: [{{containerPort: {TARGET_PORT}, hostPort: {HOST_PORT}, protocol: SCTP}}]}}]
status: {{phase: Running, podIPs: [{{ip: 10.244.0.2}}, {{ip: "fd44::2"}}]}}
"""
ASK_S = 60  # on a slow machine; an INIT that is lost comes again after 3 s
NODE_IP = ("--node-ip", "10.77.0.1", "--node-ip", "fd77::1")
PEER = Path(__file__).resolve().parents[1] / "lab" / "sctp_peer.py"
CLIENT = {"10.96.0.132": "10.77.0.2", "fd00:96::132": "fd77::2"}


@pytest.fixture(scope="module")
def library() -> str:
    """Return the stack, fetched with the other Debian packages of the tests."""
    return str(unpacked("usrsctp", USRSCTP).library("libusrsctp.so.2"))


class Calls:
    """A Service of SCTP, its servers and clients."""

    def __init__(self, made: Cluster, library: str) -> None:
        self.made, self.library = made, library
        self.servers: dict[str, subprocess.Popen[str]] = {}
        for name in ("b1", "b2", "b3"):
            backend, space = made.lab.backends[name], made.lab.namespaces[name]
            argv = self._program("serve", f"{backend.ipv4},{backend.ipv6}", str(TARGET_PORT), name)
            server = space.popen(argv, stdout=subprocess.PIPE)
            made.lab.closing.callback(end, server)
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            self.servers[name] = server

    def _program(self, *words: str) -> list[str]:
        return [sys.executable, str(PEER), self.library, *words]

    def service(self, *names: str, **fields: object) -> Manifest:
        """Return the Service with these backends."""
        endpoints = self.made.endpoints(*names, port=TARGET_PORT)
        return Manifest("calls", VIPS, endpoints, port=PORT, protocol="SCTP", **fields)  # type: ignore[arg-type]

    def ask(
        self, vip: str, *words: str, port: int = PORT, space: Namespace | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Make a call to its end; one that lasts longer than `ASK_S` is killed."""
        argv = ["timeout", "-s", "KILL", str(ASK_S), *self._program("ask", vip, str(port), *words)]
        return (space or self.made.client).run(argv)

    def calls(
        self, vip: str, count: int, *words: str, port: int = PORT, space: Namespace | None = None
    ) -> Counter[str]:
        """Make calls, one after the other; count who answered whom."""
        out: Counter[str] = Counter()
        for _ in range(count):
            done = self.ask(vip, *words, port=port, space=space)
            assert done.returncode == 0, done
            (answer,) = set(done.stdout.splitlines())  # one backend answers all messages of an association
            out[answer] += 1
        return out

    @contextlib.contextmanager
    def call(self, vip: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Make a call that lasts; when this begins, its first message has an answer."""
        caller = self.made.client.popen(
            self._program("ask", vip, str(PORT), *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            assert caller.stdout is not None
            first = caller.stdout.readline()
            assert first, caller.stderr.read() if caller.stderr else ""
            yield caller
        finally:
            end(caller)


@pytest.fixture(params=["xdp", "tc"])
def served(request: pytest.FixtureRequest, fresh: Fresh, library: str) -> Calls:
    """A running agent and the servers; no Service yet."""
    made = fresh(request.param, *NODE_IP)
    made.agent.start()
    return Calls(made, library)


def by_backend(found: Counter[str]) -> set[str]:
    return {answer.split()[0] for answer in found}


def flows(made: Cluster, state: str) -> int:
    """Return how many flows of SCTP are in a state."""
    return sum(each["state"] == state for each in made.agent.json("flow", "list", "--proto", "sctp"))


@pytest.mark.parametrize("vip", VIPS)
def test_remote_and_local_backends_answer(served: Calls, vip: str) -> None:
    """With messages of several packets; a remote backend sees the node, a local one the client."""
    made = served.made
    made.serve(served.service("b1"))
    (answer,) = served.calls(vip, 2, "--messages", "3", "--bytes", "4000")
    node = "10.77.1.1" if "." in vip else "fd77:1::1"
    assert answer == f"b1 {node}"
    made.serve(served.service("b3"))
    assert served.calls(vip, 2, "--messages", "3", "--bytes", "4000") == {f"b3 {CLIENT[vip]}": 2}
    counted = made.packets()
    assert counted["fwd_new"] >= 2
    assert counted["fwd_reply"] > 20
    assert counted["fwd_established"] + counted["fwd_local"] > 20
    assert counted["drop_sctp_unknown"] == 0
    assert flows(made, "closing") == 4


def test_each_backend_gets_calls(served: Calls) -> None:
    """Twelve calls of three backends: that one gets none happens once in a hundred, so up to ten times twelve are made."""
    served.made.serve(served.service("b1", "b2", "b3"))
    found: set[str] = set()
    for _ in range(10):
        found |= by_backend(served.calls(VIPS[0], 12))
        if len(found) == 3:
            break
    assert found == {"b1", "b2", "b3"}


def test_a_call_survives_a_restart_of_the_agent(served: Calls) -> None:
    """Its backend stays, also when others come."""
    made = served.made
    made.serve(served.service("b1"))
    with served.call(VIPS[0], "--messages", "8", "--pause", "0.5") as caller:
        made.agent.stop()
        made.agent.start()
        made.serve(served.service("b1", "b2"))
        out, error = caller.communicate(timeout=30)
    assert (caller.returncode, by_backend(Counter(out.splitlines()))) == (0, {"b1"}), error


@pytest.mark.parametrize("name", ["b1", "b3"])
def test_a_call_ends_when_its_backend_is_removed(served: Calls, name: str) -> None:
    """By an ABORT that the client accepts: it need not wait for its time-outs, which take minutes."""
    made = served.made
    made.serve(served.service(name))
    with served.call(VIPS[0], "--messages", "50", "--pause", "0.5") as caller:
        wait_for(lambda: flows(made, "established") == 1, "an established flow")
        made.serve(served.service("b2"))
        _, error = caller.communicate(timeout=15)
    assert caller.returncode == 1
    assert "reset" in error
    assert made.packets()["reject_backend_gone"] >= 1


def test_no_backend_refuses_at_once(served: Calls) -> None:
    """An ABORT with the INIT's own tag."""
    served.made.serve(served.service())
    for vip in VIPS:
        refused = served.ask(vip)
        assert refused.returncode == 1
        assert "refused" in refused.stderr
    assert served.made.packets()["reject_no_backend"] >= 2


def test_a_multi_homed_client_is_refused(served: Calls) -> None:
    """One that lists its addresses; bound to one of them it is served."""
    made = served.made
    made.client.ip("addr add 10.77.0.77/24 dev c0")
    made.serve(served.service("b1", "b3"))
    refused = served.ask(VIPS[0], "--wildcard")
    assert refused.returncode == 1
    assert "refused" in refused.stderr
    assert made.packets()["reject_sctp_multihoming"] >= 1
    assert served.calls(VIPS[0], 1, "--from", "10.77.0.77")


def test_other_frontends(served: Calls) -> None:
    """NodePort, external IP, load balancer's address and HostPort, from outside."""
    made = served.made
    ports = [{"name": "p", "protocol": "SCTP", "port": PORT, "targetPort": "p", "nodePort": NODE_PORT}]
    external = ["10.96.7.7", "fd00:96::7:7"]
    balancer = ["10.96.8.8", "fd00:96::8:8"]
    spec = {"type": "LoadBalancer", "ports": ports, "externalIPs": external}
    status = {"loadBalancer": {"ingress": [{"ip": address} for address in balancer]}}
    put(made.folder, "pod.yaml", HOST_PORT_POD)
    made.serve(served.service("b1", "b3", spec=spec, status=status))
    for address in ("10.77.0.1", "fd77::1"):
        assert by_backend(served.calls(address, 2, port=NODE_PORT)) <= {"b1", "b3"}
        assert by_backend(served.calls(address, 1, port=HOST_PORT)) == {"b3"}
    for address in (*external, *balancer):
        assert by_backend(served.calls(address, 2)) <= {"b1", "b3"}


def test_pods_and_the_node_itself(served: Calls) -> None:
    """A pod keeps its address towards a remote backend; a process of the node meets tc_egress."""
    made = served.made
    pod = made.lab.add_pod("p4", "pod4", "10.244.4", "fd44:4")
    for network, through in (("10.244.4.0/24", "10.77.1.1"), ("fd44:4::/64", "fd77:1::1")):
        made.lab.namespaces["b1"].ip(f"route replace {network} via {through}")
    made.serve(served.service("b1"))
    wait_for(lambda: "pod4" in made.agent.cli("status", check=False).stdout, "programs on the pod's device")
    for vip in VIPS:
        own = pod.ipv4 if "." in vip else pod.ipv6
        assert served.calls(vip, 1, "--messages", "2", space=made.lab.namespaces["p4"]) == {f"b1 {own}": 1}
    made.lab.node.ip("route add default via 10.77.0.2", "route add default via fd77::2")
    for vip in VIPS:
        assert by_backend(served.calls(vip, 1, "--messages", "2", space=made.lab.node)) == {"b1"}


def test_explain_monitor_and_flow(served: Calls) -> None:
    """The tools have the protocol."""
    made = served.made
    made.serve(served.service("b1"))
    told = made.agent.cli("explain", "10.77.0.2:40000", f"{VIPS[0]}:{PORT}/sctp", "--expect", "fwd_new")
    assert "SCTP" in told.stdout
    with served.call(VIPS[0], "--messages", "20", "--pause", "0.2"):
        wait_for(lambda: flows(made, "established") == 1, "an established flow")
        (found,) = made.agent.json("flow", "list", "--proto", "sctp")
        assert (found["protocol"], found["state"]) == ("SCTP", "established")
        assert found["frontend"] == f"{VIPS[0]}:{PORT}/SCTP"
        assert made.agent.json("flow", "list", "--proto", "tcp") == []
