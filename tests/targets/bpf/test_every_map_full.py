"""Each map that a State fills, filled: removals and changes within room work, nothing opens, the object is named, and it recovers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from msgspec import Struct

from lbagent.maps.consistency import check
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.maps.specs import map_specs
from lbagent.model.family import Family
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import CIDR, SVC, Algorithm, ServiceName
from lbagent.model.state import State
from lbagent.sync import backoff, failures
from lbagent.sync.target_protocol import Desired
from lbagent.targets.bpf import restore
from lbagent.targets.bpf.bpf_target import BpfTarget
from tests.sync.rig import SMALL, FixedPaths
from tests.targets.bpf.plans import backend, backends_of, service, wanted_of
from tests.targets.bpf.test_full_maps import CLIENTS, admits, is_wanted

FOUR, SIX = Family.IPV4, Family.IPV6


def vip(family: Family, tenant: int, port: int) -> str:
    """Return the address of a frontend."""
    return f"10.96.0.{tenant}:{port}" if family is FOUR else f"[fd00::{tenant}]:{port}"


def backends(family: Family, tenant: int, count: int, first: int) -> list:
    """Return backends that no other tenant has."""
    numbers = range(first, first + count)
    return [backend(f"10.1.{tenant}.{n}:80" if family is FOUR else f"[fd00:{tenant}::{n}]:80") for n in numbers]


def one(family: Family, tenant: int, *found, **more) -> SVC:
    """Return a frontend of a tenant, which is a namespace."""
    more = {"port": 80, **more}
    text = vip(family, tenant, more.pop("port"))
    return service(text, *found, name=ServiceName(f"t{tenant}", "web"), **more)


Use = Callable[
    [int, int, int], Sequence[SVC]
]  # (tenant, number, first) -> frontends with so many items from `first` on


def with_backends(family: Family, **more) -> Use:
    """One frontend with so many backends."""
    return lambda tenant, number, first: [one(family, tenant, *backends(family, tenant, number, first), **more)]


def with_matches(tenant: int, number: int, first: int) -> Sequence[SVC]:
    """One frontend with affinity: tenants of both families share a map."""
    return with_backends(SIX if tenant == 2 else FOUR, session_affinity=True)(tenant, number, first)


def with_ranges(family: Family) -> Use:
    """One frontend that admits so many networks."""

    def use(tenant: int, number: int, first: int) -> Sequence[SVC]:
        nets = [f"198.51.{n}.0/24" if family is FOUR else f"2001:db8:{n}::/48" for n in range(first, first + number)]
        return [
            one(family, tenant, *backends(family, tenant, 1, 1), source_ranges=tuple(map(CIDR.parse, nets)),
                check_source_range=True, flags=ServiceFlags.ROUTABLE | ServiceFlags.SOURCE_RANGE)
        ]  # fmt: skip

    return use


def with_frontends(family: Family, **more) -> Use:
    """So many frontends with one backend."""
    return lambda tenant, number, first: [
        one(family, tenant, *backends(family, tenant, 1, 1), port=port, **more) for port in range(first, first + number)
    ]


class Filled(Struct):
    """How a State fills a map: two tenants with 3 items each leave no room for a seventh."""

    use: Use
    sizes: dict[str, int]
    words: tuple[str, ...]  # of the message, besides the frontend or backend that is missing
    service_ids: int = 1 << 16  # limit of the ids


SLOTS = {"services": 8}  # slot 0 and three more, twice
MATCHES = {"services": 6}  # three matches, twice; slots are counted by family
IDS = ("service ids",)
MAGLEV = {"algorithm": Algorithm.MAGLEV}
FILLED = {
    "lb4_service": Filled(with_backends(FOUR), SLOTS, ("map lb4_service is full", "--max-service-slots")),
    "lb6_service": Filled(with_backends(SIX), SLOTS, ("map lb6_service is full", "--max-service-slots")),
    "lb_affinity_match": Filled(with_matches, MATCHES, ("map lb_affinity_match is full", "--max-service-slots")),
    "lb4_source_range": Filled(
        with_ranges(FOUR), {"source_ranges": 6}, ("map lb4_source_range is full", "--max-source-ranges")
    ),
    "lb6_source_range": Filled(
        with_ranges(SIX), {"source_ranges": 6}, ("map lb6_source_range is full", "--max-source-ranges")
    ),
    "lb4_backend": Filled(with_backends(FOUR), {"backends": 7}, ("backend ids", "--max-backends")),
    "lb6_backend": Filled(with_backends(SIX), {"backends": 7}, ("backend ids", "--max-backends")),
    "lb4_path": Filled(with_backends(FOUR, **MAGLEV), {"backends": 7}, ("backend ids", "--max-backends")),
    "lb6_path": Filled(with_backends(SIX, **MAGLEV), {"backends": 7}, ("backend ids", "--max-backends")),
    "lb4_reverse_nat": Filled(with_frontends(FOUR), {}, IDS, service_ids=7),
    "lb6_reverse_nat": Filled(with_frontends(SIX), {}, IDS, service_ids=7),
    "lb4_maglev": Filled(with_frontends(FOUR, **MAGLEV), {}, IDS, service_ids=7),
    "lb6_maglev": Filled(with_frontends(SIX, **MAGLEV), {}, IDS, service_ids=7),
}
# Maps that a State cannot fill: with the reason.
NOT_FILLED = {
    "lb_filter": "one bit for each address, several addresses may share one",
    "lb_metrics": "a counter for each id",
    "lb_live": "a counter for each backend id",
    "lb_closing": "a counter for each backend id",
    "lb_tcp": "a record for each backend id",
    "lb_new_flows": "a counter for each service id",
    "lb_handshake": "handshakes that wait; one that finds no room is not timed",
    **dict.fromkeys(("lb_nexthop", "lb_nexthop_id"), "next hops of the network; without room packets cost a FIB look-up"),
    **dict.fromkeys(("lb_neighbor",), "neighbours of the network; without room packets go by the kernel"),
    **dict.fromkeys(("lb_vip", "lb_former_leader"), "addresses that this node announces"),
    **dict.fromkeys(("lb4_left", "lb6_left"), "conversations over UDP of another proxy; without room one selects a backend again"),
    "lb_stale_backend": "the oldest ones are left out: their time does not survive a restart",
    **dict.fromkeys(("lb4_port_range", "lb6_port_range"), "65,536 prefixes: test_port_range_plans.py has a smaller map"),
    "lb_echo": "an entry for each address of services, of which there are no more than service ids",
    "lb_rules": "8,191 Services can have rules about flows; the log names those that cannot",
    "lb_rules_of": "a number for each service id",
    "lb_backend_flows": "a record for each backend id",
    "lb_swept": "a counter for each of both",
    "lb_former_backend": "filled for one sweep; what has no room waits for the next one",
    **dict.fromkeys(("lb_device", "lb_direct", "lb_config", "lb_scratch", "lb_ratelimit", "lb_datagram", "lb_crc32c"), "fixed"),
    **dict.fromkeys(
        (f"lb{digit}_{kind}" for digit in (4, 6) for kind in
         ("affinity", "flow", "snat", "spill", "frag", "sock", "stream")),
        "filled by packets and sockets; old entries make room",
    ),
}  # fmt: skip


def test_every_map_is_known_here():
    """A map that is added needs an answer to what happens when it is full."""
    programs = {name for name, spec in map_specs().items() if spec.type == 3}
    assert FILLED.keys() | NOT_FILLED.keys() == map_specs().keys() - programs
    assert not FILLED.keys() & NOT_FILLED.keys()


class Agent:
    """A target without its loop."""

    def __init__(self, filled: Filled) -> None:
        self.maps = MemoryMaps(replace(SMALL, **filled.sizes))
        self.start()

    def start(self) -> None:
        self.target = BpfTarget.open(self.maps, FixedPaths(), "me")

    async def serve(self, *groups: Sequence[SVC]) -> list[str]:
        """Reconcile until the target rests; return the messages of what fails."""
        wanted = Desired(State(1, tuple(svc for group in groups for svc in group)))
        self.target.wake.set()
        for _ in range(10):
            if not self.target.wake.is_set():
                break
            self.target.wake.clear()
            await self.target.reconcile(wanted)
        assert not self.target.wake.is_set(), "it wakes without end"
        assert self.target.error == ""
        assert check(self.maps, settled=True) == []
        self.nothing_opens(wanted.state)
        return [str(failure.error) for failure in self.target.failing.values()]

    def nothing_opens(self, wanted: State) -> None:
        for frontend in self.target.shadow.frontends:
            svc = wanted.by_frontend[frontend]
            assert (backends_of(self.maps, frontend) or set()) <= wanted_of(svc)
            for client in (
                *CLIENTS[len(frontend.address)],
                "198.51.2.1" if len(frontend.address) == 4 else "2001:db8:2::1",
            ):
                assert not admits(self.maps, frontend, client) or is_wanted(svc, client)

    def serves(self, svc: SVC) -> bool:
        """Return whether a frontend is in the maps whole."""
        inside = backends_of(self.maps, svc.frontend) == wanted_of(svc)
        return inside and all(admits(self.maps, svc.frontend, str(cidr).split("/")[0]) for cidr in svc.source_ranges)


@pytest.mark.parametrize("restarts", [False, True], ids=["runs", "restarts"])
@pytest.mark.parametrize("name", FILLED)
async def test_a_full_map(name: str, restarts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = FILLED[name]
    use = filled.use
    monkeypatch.setattr(restore, "SERVICE_ID_LIMIT", filled.service_ids)
    monkeypatch.setattr(failures, "delays", lambda: backoff.delays(3600, 3600))
    agent = Agent(filled)
    assert await agent.serve(use(1, 3, 1), use(2, 3, 1)) == []

    grown = use(1, 4, 1)
    (error,) = await agent.serve(grown, use(2, 3, 1))
    assert agent.target.failing.keys() <= {svc.frontend for svc in grown}
    assert [word for word in filled.words if word not in error] == []
    assert all(agent.serves(svc) for svc in use(2, 3, 1))
    if restarts:
        agent.start()
        assert len(await agent.serve(grown, use(2, 3, 1))) == 1
        assert all(agent.serves(svc) for svc in use(2, 3, 1))

    swapped = use(2, 3, 2)
    await agent.serve(grown, swapped)
    assert all(agent.serves(svc) for svc in swapped), "another tenant's change within its room"

    assert len(await agent.serve(use(1, 4, 5), swapped)) == 1, "all items of a tenant are replaced, and one more"

    fewer = use(2, 1, 3)
    assert len(await agent.serve(use(1, 4, 5), fewer)) == 1, (
        "more than 80 % are wanted, and a tenant is beyond its share"
    )
    assert all(agent.serves(svc) for svc in fewer), "a removal always works"
    assert await agent.serve(use(1, 4, 5), use(2, 0, 3)) == []
    assert all(agent.serves(svc) for svc in use(1, 4, 5)), "freed entries are used at once"
    assert await agent.serve(use(1, 4, 5)) == []
    assert all(agent.serves(svc) for svc in use(1, 4, 5))
    assert await agent.serve() == []
    assert agent.target.shadow.frontends == {}
