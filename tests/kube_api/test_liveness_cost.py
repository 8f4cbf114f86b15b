"""What a node of a thousand spends to find out which of them are dead: processor, memory, writes to the API server."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbagent.liveness.echo_packet import ANSWER, QUESTION, Echo, answer_to, read_echo, step_at, write_echo
from tests.kube_api.announcing_nodes import LEASES, give_rights
from tests.kube_api.cluster import Cluster
from tests.kube_api.control_plane import PORT
from tests.kube_api.proxy import Proxy
from tests.kube_api.watching_nodes import KEY
from tests.lab.netns import Namespace, veth
from tests.lab.topology import ROOT, end

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.quiet]
NODES = 1000
MEASURED_S = 30.0
HERE, REST = "10.9.0.1", "10.9.0.2"


class Rest:
    """All other nodes, at one address: they answer, and eight of them ask three times a second."""

    def __init__(self, space: Namespace) -> None:
        with space.entered():
            self.server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.server.bind((REST, 10257))
            self.client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.ends = threading.Event()
        self.asked: set[str] = set()
        self.answered = 0
        self.threads = [threading.Thread(target=each) for each in (self._answer, self._ask, self._count)]
        for sock in (self.server, self.client):
            sock.settimeout(0.5)
        for each in self.threads:
            each.start()

    def _answer(self) -> None:
        while not self.ends.is_set():
            try:
                data, peer = self.server.recvfrom(2048)
            except TimeoutError:
                continue
            echo = read_echo(data, KEY.encode())
            assert echo is not None
            self.asked.add(echo.node)
            answer = answer_to(data, KEY.encode(), echo.node, step_at(time.time()))
            assert answer is not None
            self.server.sendto(answer, peer)

    def _ask(self) -> None:
        while not self.ends.wait(0.4):
            for _ in range(8):
                nonce = random.randbytes(16)
                question = write_echo(Echo(QUESTION, step_at(time.time()), nonce, "many-0"), KEY.encode())
                self.client.sendto(question, (HERE, 10257))

    def _count(self) -> None:
        while not self.ends.is_set():
            try:
                echo = read_echo(self.client.recv(2048), KEY.encode())
            except (TimeoutError, ConnectionRefusedError):
                continue
            self.answered += echo is not None and echo.kind == ANSWER

    def close(self) -> None:
        self.ends.set()
        for each in self.threads:
            each.join()
        self.server.close()
        self.client.close()


@pytest.fixture
def many(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with the Leases of all nodes."""
    give_rights(cluster)
    bodies = [
        {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": f"many-{number}"},
            "metadata": {
                "name": f"lbagent-live-many-{number}", "namespace": "kube-system", "labels": {"lbagent.io/lease": "live"},
                "annotations": {"lbagent.io/addresses": REST},
            },
        }
        for number in range(1, NODES)
    ]  # fmt: skip
    for body in bodies:
        cluster.plane.ask("POST", LEASES, body)
    yield cluster
    cluster.plane.ask("DELETE", f"{LEASES}?labelSelector=lbagent.io/lease=live")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def test_one_percent_of_a_core_five_mib_and_no_write(many: Cluster, tmp_path: Path) -> None:
    here, rest = Namespace("here", "cost-"), Namespace("rest", "cost-")
    veth(here, "eth0", rest, "eth0")
    here.ip(f"addr add {HERE}/24 dev eth0")
    rest.ip(f"addr add {REST}/24 dev eth0")
    proxy = Proxy(many.plane.namespace, PORT, listen=here)
    kubeconfig = many.plane.kubeconfig(many.plane.lasting_token, tmp_path / "kubeconfig", proxy.port)
    (tmp_path / "key").write_text(KEY)
    others = Rest(rest)
    argv = [sys.executable, "-m", "tests.kube_api.one_of_many", str(kubeconfig), "many-0", str(tmp_path / "key")]
    process = here.popen(argv, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        before_kib = int(process.stdout.readline())
        assert process.stdout.readline() == "ready\n"
        time.sleep(5)
        others.asked.clear()
        others.answered, writes, began_cpu, began = 0, len(many.plane.requests()), cpu_s(process.pid), time.monotonic()
        time.sleep(MEASURED_S)
        took_s = time.monotonic() - began
        share, grown_kib = (cpu_s(process.pid) - began_cpu) / took_s, resident_kib(process.pid) - before_kib
        verbs = [each.verb for each in many.plane.requests()[writes:] if each.resource == "leases"]
        print(
            f"\n{share:.2%} of a core, {grown_kib / 1024:.1f} MiB, observes {len(others.asked)}, answered {others.answered}"
        )
        assert 1 <= len(others.asked) <= 24, "eight on average"
        assert others.answered > 0.9 * 8 * MEASURED_S / 0.4
        assert share <= 0.01
        assert grown_kib <= 5 * 1024
        assert not {"create", "update", "patch"} & set(verbs)
    finally:
        end(process)
        others.close()
        proxy.close()
        here.delete()
        rest.delete()
