"""The kind of a ProbeSpec decides what is sent."""

from __future__ import annotations

import socket

import pytest
from msgspec.structs import replace

from lbagent.probes.probe_kinds import PROBES, SharedParts, make_probe
from lbagent.probes.probe_protocol import Result
from lbagent.probes.probe_spec import ProbeKind, ProbeSpec
from tests.probes.plain_servers import PATIENT, QUICK, answering, server_at


def test_each_kind_has_a_probe() -> None:
    assert list(PROBES) == list(ProbeKind)
    assert ProbeSpec().kind is ProbeKind.HTTPS


@pytest.mark.parametrize(
    ("spec", "result"),
    [
        (replace(PATIENT, kind=ProbeKind.TCP), Result.OK),
        (replace(PATIENT, kind=ProbeKind.HTTP), Result.STATUS),
        (replace(QUICK, kind=ProbeKind.HTTPS), Result.TIMEOUT),
    ],
    ids=lambda each: getattr(each, "kind", each),
)
async def test_one_server_by_each_kind(spec: ProbeSpec, result: Result) -> None:
    """A server that answers 503 to a head of HTTP, and waits for its end."""
    async with answering(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n") as (server, _):
        probe = make_probe(server, spec, SharedParts())
        assert (await probe.ask()).result is result
        probe.close()


async def test_a_datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        probe = make_probe(server_at(listener), replace(QUICK, kind=ProbeKind.UDP), SharedParts())
        assert (await probe.ask()).result is Result.OK
    assert (await probe.ask()).result is Result.REFUSED
