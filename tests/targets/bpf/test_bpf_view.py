"""What the BPF data plane shows of its flow tables."""

from __future__ import annotations

import pytest

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import Backend
from lbagent.model.family import Family
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.targets.bpf.bpf_view import flows
from lbagent.targets.data_plane import Flow
from tests.maps.test_flow_reader import PORT, entry, maps_with
from tests.sync.rig import FixedPaths


@pytest.mark.parametrize("family", Family, ids=str)
def test_flows_with_the_addresses_of_their_backends(family: Family) -> None:
    """A flow whose backend is gone has none; the words of states and modes are in lower case."""
    maps = maps_with(family, {3: entry(family), 5: entry(family, 2, backend=8, state=0)})
    target = BpfTarget.open(maps, FixedPaths(), "me", are_new=True)
    backend = L3n4Addr(b"\x0a\0\0\7", 8080)
    svc = SVC(L3n4Addr(b"\x0a\x60\0\1", 80), 1, ServiceName("t", "a"), selectable=(Backend(7, backend),))
    target.state = State(1, (svc,))
    found = [flow for piece in flows(maps, target) for flow in piece]
    first, second = (L3n4Addr(number.to_bytes(family.address_bytes, "little"), PORT, L4Type.TCP) for number in (1, 2))
    vip = L3n4Addr((9).to_bytes(family.address_bytes, "little"), 80, L4Type.TCP)
    assert found == [
        Flow(first, vip, backend, "established", "local"),
        Flow(second, vip, None, "new", "local"),
    ]
