"""What the clients of the lifecycle count: they and their servers run as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.lifecycle import CLIENT, NODE_PORT, SERVER, Counts
from tests.lab.netns import Namespace, wait_for

ADDRESSES = {"ECHO_SERVICE_HOST": "127.0.0.1", "HOST_IP": "127.0.0.1"}


def test_the_last_lines_of_all_clients_are_added_up() -> None:
    counts = Counts.read("5 1 0 0\nTraceback\n7 0 2 1\n")
    assert counts == Counts(requests=12, failed=1, broken=2, slow=1)
    assert counts.since(Counts(2, 1, 0, 0)) == Counts(10, 0, 2, 1)
    assert Counts.read("") == Counts(0, 0, 0, 0)


@pytest.mark.root
def test_a_client_counts_requests_that_fail_and_open_connections_that_break(tmp_path: Path) -> None:
    log = tmp_path / "client.log"
    with contextlib.ExitStack() as closing:
        net = Namespace("lifecycle")
        closing.callback(net.delete)

        def start(code: str) -> subprocess.Popen[str]:
            with log.open("a") as out:
                started = net.popen([sys.executable, "-c", code], stdout=out, env=os.environ | ADDRESSES)
            closing.callback(started.wait)
            closing.callback(started.kill)
            return started

        def counts() -> Counts:
            return Counts.read("\n".join(log.read_text().splitlines()[-1:]))

        start(SERVER.replace("8080", "80"))
        server = start(SERVER.replace("8080", str(NODE_PORT)))
        wait_for(lambda: len(net.call(Path("/proc/thread-self/net/tcp").read_text).splitlines()) > 2, "the servers")
        start(CLIENT)
        wait_for(lambda: counts().requests > 4, "requests")
        assert (counts().failed, counts().broken) == (0, 0)
        server.kill()
        wait_for(lambda: counts().failed and counts().broken, "failures")
