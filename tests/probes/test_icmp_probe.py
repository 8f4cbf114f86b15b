"""The ICMP probe against real kernels: this one's loopback, and an address that nothing has."""

from __future__ import annotations

import asyncio

import pytest

from lbagent.model.address import parse_ip
from lbagent.probes.icmp_probe import IcmpProbe
from lbagent.probes.probe_protocol import Probe, Result
from tests.lab.netns import Namespace, veth

pytestmark = [pytest.mark.root]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_kernel_answers(host: str) -> None:
    probe: Probe = IcmpProbe(parse_ip(host), 30.0)
    outcome = await probe.ask(may_use_idle=True)
    assert (outcome.result, outcome.text) == (Result.OK, "answered")
    probe.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_probes_at_the_same_time_take_their_own_replies(host: str) -> None:
    outcomes = await asyncio.gather(*(IcmpProbe(parse_ip(host), 30.0).ask() for _ in range(50)))
    assert {each.result for each in outcomes} == {Result.OK}


@pytest.mark.parametrize(("address", "silent"), [("10.77.0.1/24", "10.77.0.2"), ("fd77::1/64", "fd77::2")])
def test_a_host_that_is_gone_is_silent(address: str, silent: str) -> None:
    here, there = Namespace("here", "icmp-"), Namespace("there", "icmp-")
    try:
        veth(here, "eth0", there, "eth0")
        here.ip(f"addr add {address} dev eth0")
        outcome = here.call(lambda: asyncio.run(IcmpProbe(parse_ip(silent), 0.3).ask()))
        assert not outcome.is_up
        there.ip(f"addr add {silent}/{address.rpartition('/')[2]} dev eth0")
        assert here.call(lambda: asyncio.run(IcmpProbe(parse_ip(silent), 30.0).ask())).is_up
    finally:
        here.delete()
        there.delete()
