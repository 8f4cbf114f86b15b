"""Flows of sockets by frontend and backend: those that are over are none."""

from __future__ import annotations

from typing import Any, Self

import pytest

from lbagent.maps.flow_layout import FlowState
from lbagent.maps.layout import PathL4
from lbagent.maps.socket_flows import SocketFlow
from lbagent.model.address import L3n4Addr
from lbagent.targets.bpf import live_sockets as module

FRONTEND, BACKEND = L3n4Addr.parse("10.96.0.1:53/UDP"), L3n4Addr.parse("10.0.0.1:5353/UDP")


class Pins:
    def __init__(self, bpffs: str) -> None:
        assert bpffs == "/pins"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def settings_record(self) -> bytes:
        return b""


def flow(state: FlowState) -> SocketFlow:
    ends = ((FRONTEND.address, FRONTEND.port), (BACKEND.address, BACKEND.port))
    return SocketFlow(PathL4.UDP, None, *ends, 7, state)


@pytest.mark.parametrize(
    ("listed", "counted"),
    [
        (None, None),
        ([], {}),
        ([flow(FlowState.NEW), flow(FlowState.CLOSING), flow(FlowState.ESTABLISHED)], {(FRONTEND, BACKEND): 2}),
    ],
)
def test_live_sockets(monkeypatch: pytest.MonkeyPatch, listed: Any, counted: Any) -> None:
    monkeypatch.setattr(module, "PinnedMaps", Pins)
    monkeypatch.setattr(module, "socket_flows_here", lambda _maps, _netns: listed)
    assert module.live_sockets("/pins") == counted
