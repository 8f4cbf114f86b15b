"""Which external addresses are served: those with a backend for new flows, and those of an L7 proxy."""

from __future__ import annotations

from lbagent.announce.served_addresses import ServedAddresses
from lbagent.model.address import L3n4Addr
from lbagent.model.service import SVC, ServiceName, SVCType
from lbagent.model.state import State
from tests.targets.bpf.plans import backend

VIP = "192.0.2.80"
NAME = ServiceName("default", "web")


def row(port: int, kind: SVCType = SVCType.LOAD_BALANCER, **more: object) -> SVC:
    return SVC(L3n4Addr.parse(f"{VIP}:{port}/TCP"), name=NAME, type=kind, **more)  # type: ignore[arg-type]


def test_a_backend_or_a_proxy_serves_an_address() -> None:
    served = ServedAddresses()
    (address,) = {row(80).frontend.address}
    assert served.update(State(1, (row(80),))) == set()
    assert served.update(State(2, (row(80, l7_lb_proxy_port=15001),))) == {address}
    assert served.update(State(3, (row(80, l7_lb_proxy_port=15001), row(81)))) == set()
    assert address in served
    assert served.update(State(4, (row(80), row(81, selectable=(backend("10.244.1.1:80/TCP"),))))) == set()
    assert served.update(State(5, (row(80), row(81)))) == {address}
    assert served.update(State(6, (row(80, SVCType.CLUSTER_IP, l7_lb_proxy_port=15001),))) == set()
    assert address not in served
