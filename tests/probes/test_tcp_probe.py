"""The TCP probe against real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest

from lbagent.model.address import L3n4Addr
from lbagent.probes.pending_connects import PendingConnects
from lbagent.probes.probe_protocol import Probe, Result
from lbagent.probes.probe_spec import ProbeSpec
from lbagent.probes.tcp_probe import TcpProbe
from tests.lab.https_server import full_listener
from tests.probes.plain_servers import LOOPBACKS, PATIENT, QUICK, server_at, unused


def tcp_probe(server: L3n4Addr, spec: ProbeSpec) -> TcpProbe:
    return TcpProbe(server, spec, PendingConnects(time.monotonic))


@pytest.mark.parametrize("host", LOOPBACKS)
async def test_a_server_that_listens_is_up_and_its_process_need_not_run(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        probe: Probe = tcp_probe(server_at(listener), PATIENT)
        for _ in range(3):
            outcome = await probe.ask(may_use_idle=True)
            assert (outcome.result, outcome.is_up, outcome.text) == (Result.OK, True, "connected")
        probe.close()


@pytest.mark.parametrize("host", LOOPBACKS)
async def test_a_port_without_a_server_is_refused(host: str) -> None:
    with unused(socket.SOCK_STREAM, host) as server:
        outcome = await tcp_probe(server, PATIENT).ask()
    assert (outcome.result, outcome.is_up, outcome.text) == (Result.REFUSED, False, "connection refused")


async def test_a_server_that_takes_no_connection_in_time() -> None:
    began = time.monotonic()
    with contextlib.ExitStack() as closing:
        listener, *_ = [closing.enter_context(sock) for sock in full_listener("127.0.0.1", 0)]
        outcome = await tcp_probe(server_at(listener), QUICK).ask()
    assert (outcome.result, outcome.text) == (Result.TIMEOUT, "no answer within 0.3 s")
    assert 0.3 <= time.monotonic() - began < 30


async def test_no_way_to_the_server() -> None:
    """The answer is the kernel's."""
    outcome = await tcp_probe(L3n4Addr.parse("255.255.255.255:80"), PATIENT).ask()
    assert outcome.result is Result.CONNECTION, outcome.text
    assert outcome.text


async def test_a_cancelled_question_leaves_no_socket_behind() -> None:
    with contextlib.ExitStack() as closing:
        listener, *_ = [closing.enter_context(sock) for sock in full_listener("127.0.0.1", 0)]
        asking = asyncio.create_task(tcp_probe(server_at(listener), PATIENT).ask())
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
