"""Rows by which bpf begins no flow."""

from __future__ import annotations

from lbagent.maps.frontend_codec import encode, flags_of
from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.targets.bpf.passing_rows import PassingRows

L7 = 0x0400  # cilium pkg/loadbalancer/loadbalancer.go: serviceFlagL7LoadBalancer
WEB = SVC(L3n4Addr(bytes((10, 96, 0, 10)), 80, L4Type.TCP), 5, ServiceName("default", "web"))
ANY = SVC(L3n4Addr(bytes((10, 96, 0, 10)), 0, L4Type.NONE), 0, ServiceName("default", "web"), wildcard=True)


def test_frontends_pass_new_flows_and_closed_ports_are_still_refused() -> None:
    made = PassingRows().state(State(7, (WEB, ANY)))
    assert made.generation == 7
    assert [flags_of(encode(row).slots[0]) & L7 for row in made.services] == [L7, 0]
    assert made.services[1] is ANY


def test_the_same_row_stays_the_same_object() -> None:
    rows = PassingRows()
    first, second = rows.state(State(1, (WEB,))), rows.state(State(2, (WEB, ANY)))
    assert first.services[0] is second.services[0]
