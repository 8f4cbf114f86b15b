"""`/readyz` proves the datapath: what breaks it makes the node not ready, with the reason; what repairs it makes it ready again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lbagent.kernel import bpf_map, bpf_prog, bpffs
from tests.e2e.cluster import Cluster
from tests.lab.netns import wait_for

PORT = 10256
FRONTENDS = ("10.96.0.10:80/TCP", "10.96.0.53:53/UDP")
ATTACHED = {"xdp": "lb_calls_xdp", "tc": "lb_calls_tc"}
SLOW_PATH = 3  # the slot of IPv4's slow path


def readyz(cluster: Cluster) -> tuple[int, dict[str, object]]:
    """Return status and body of /readyz, asked on the node."""
    with cluster.lab.node.entered():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/readyz", timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except urllib.error.URLError:
            return 0, {}


def wait_status(cluster: Cluster, status: int) -> dict[str, object]:
    """Wait for a status of /readyz; return the body."""
    wait_for(lambda: readyz(cluster)[0] == status, f"/readyz {status}", 30)
    return readyz(cluster)[1]


@contextlib.contextmanager
def array(cluster: Cluster, name: str) -> Iterator[int]:
    """Open a pinned map of the agent."""
    fd = bpffs.open_pin(Path(cluster.agent.json("status")["bpffs"]) / "v1" / name)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture(params=ATTACHED)
def tested(request: pytest.FixtureRequest, fresh: Callable[..., Cluster]) -> Cluster:
    """An agent that serves /readyz, with the self-test passed."""
    made = fresh(request.param, "--healthz-bind-address", f"127.0.0.1:{PORT}")
    made.web().write(made.folder)
    made.dns().write(made.folder)
    made.agent.start()
    assert wait_status(made, 200) == {"ready": True}
    return made


def success(cluster: Cluster) -> str:
    """Return the value of the metric."""
    text = cluster.agent.cli("metrics").stdout
    return next(line.split()[1] for line in text.splitlines() if line.startswith("lbagent_selftest_success "))


def test_a_removed_tail_call_is_not_ready_until_it_is_back(tested: Cluster) -> None:
    assert success(tested) == "1"
    name = ATTACHED[tested.agent.attach]
    with array(tested, name) as calls:
        slot = struct.pack("<I", SLOW_PATH)
        ident = bpf_map.map_lookup(calls, slot, 4)
        assert ident is not None
        program = bpf_prog.prog_fd_by_id(struct.unpack("<I", ident)[0])
        try:
            assert bpf_map.map_delete(calls, slot)
            body = wait_status(tested, 503)
            assert body["ready"] is False
            assert f"slot {SLOW_PATH} of {name} (slow_path4) is empty" in str(body["reason"])
            assert success(tested) == "0"
            wait_for(
                lambda: "selftest-failed" in tested.agent.cli("status", "-o", "json", check=False).stdout, "condition"
            )
            status = tested.agent.cli("status", check=False)
            assert (status.returncode, "is empty" in status.stdout) == (1, True)
            other = bpf_map.map_lookup(calls, struct.pack("<I", SLOW_PATH + 1), 4)
            assert other is not None
            with contextlib.closing(os.fdopen(bpf_prog.prog_fd_by_id(struct.unpack("<I", other)[0]), "rb", 0)) as wrong:
                bpf_map.map_update(calls, slot, struct.pack("<I", wrong.fileno()))
            wait_for(lambda: "has another program" in str(readyz(tested)[1]), "the wrong program is seen", 30)
            bpf_map.map_update(calls, slot, struct.pack("<I", program))
            assert wait_status(tested, 200) == {"ready": True}
            assert success(tested) == "1"
        finally:
            os.close(program)


def test_a_restart_repairs_a_removed_tail_call(tested: Cluster) -> None:
    """The pinned programs are the same: they are not taken over with a hole."""
    with array(tested, ATTACHED[tested.agent.attach]) as calls:
        tested.agent.stop()
        assert bpf_map.map_delete(calls, struct.pack("<I", SLOW_PATH))
    tested.agent.start()
    wait_status(tested, 200)
    assert sum(tested.http(20).values()) == 20


def test_a_frontend_that_packets_do_not_meet_is_not_ready(tested: Cluster) -> None:
    """The prefilter is emptied by another process: every packet would pass."""
    with array(tested, "lb_filter") as fd:
        size = bpf_map.map_info(fd).value_size
        was = bpf_map.map_lookup(fd, bytes(4), size)
        assert was is not None
        bpf_map.map_update(fd, bytes(4), bytes(size))
        body = wait_status(tested, 503)
        assert any(f"{address} " in str(body["reason"]) for address in FRONTENDS), body
        assert "does not meet its frontend" in str(body["reason"])
        bpf_map.map_update(fd, bytes(4), was)
    wait_status(tested, 200)


def test_it_changes_nothing(tested: Cluster) -> None:
    """Runs of some seconds leave the flow tables, the SNAT slots and the counters as they were."""

    def digests() -> dict[str, str]:
        found = {}
        for name in ("lb4_flow", "lb6_flow", "lb4_snat", "lb6_snat"):
            with array(tested, name) as fd:
                value = bpf_map.map_lookup(fd, bytes(4), bpf_map.map_info(fd).value_size)
                assert value is not None
                found[name] = hashlib.sha256(value).hexdigest()
        services = [
            line for line in tested.agent.cli("metrics").stdout.splitlines() if "lbagent_service_packets" in line
        ]
        return found | {"services": "\n".join(services)}

    before = digests()
    said = tested.agent.tail(200)
    time.sleep(11)
    assert digests() == before
    assert "self-test failed" not in said
