"""States, maps and paths for the tests of plan, apply and restore; and what they hold the maps against."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from lbagent.maps.lbmaps import LBMaps
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.maps.specs import Sizes
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.flags import ServiceFlags
from lbagent.model.ids import IdAllocator, IdAssigner
from lbagent.model.path_info import PathInfo
from lbagent.model.service import CIDR, SVC, Algorithm
from lbagent.model.state import State
from lbagent.targets.bpf.apply import Applied, apply
from lbagent.targets.bpf.plan import plan
from lbagent.targets.bpf.restore import Restored, restore
from lbagent.targets.bpf.shadow import Shadow

SMALL = Sizes(
    flow4=1 << 10, flow6=1 << 10, snat4=1 << 10, snat6=1 << 10, services=1 << 10, backends=1 << 8,
    source_ranges=1 << 8, affinity=1 << 8, spill=1 << 8, fragments=1 << 8, maglev_size=251,
)  # fmt: skip
SNAT = (bytes([192, 168, 0, 1]), bytes(15) + b"\7")
ACTIVE, TERMINATING = BackendState.ACTIVE, BackendState.TERMINATING
QUARANTINED, MAINTENANCE = BackendState.QUARANTINED, BackendState.MAINTENANCE


def backend(text: str, state: BackendState = ACTIVE, weight: int = 100) -> Backend:
    """Return a backend of "10.244.1.1:80/TCP"."""
    return Backend(address=L3n4Addr.parse(text), state=state, weight=weight)


def service(text: str, *selectable: Backend, flags: int = ServiceFlags.ROUTABLE, **more) -> SVC:
    """Return a frontend of "10.96.0.1:80/TCP" and its backends."""
    if more.get("session_affinity"):
        flags |= ServiceFlags.SESSION_AFFINITY
    return SVC(L3n4Addr.parse(text), selectable=selectable, flags=ServiceFlags(flags), **more)


def paths(found: Backend) -> PathInfo:
    """Say that backends whose address ends in an odd byte are on this node."""
    address = found.address.address
    if address[-1] & 1:
        return PathInfo(b"", 0, 1500, local=True)
    return PathInfo(SNAT[0] if len(address) == 4 else SNAT[1], 5, 1400)


@dataclass
class Node:
    """Maps, what is known about them, and the ids: an agent without its loop."""

    maps: LBMaps = field(default_factory=lambda: MemoryMaps(SMALL))
    shadow: Shadow = field(init=False)
    book: IdAssigner = field(init=False)
    state: State = field(default_factory=State)

    def __post_init__(self):
        self.book = ids(self.maps.sizes)
        self.shadow = Shadow(self.maps.sizes)

    def restart(self) -> Restored:
        """Forget everything and read it from the maps."""
        found = restore(self.maps)
        self.shadow, self.book = found.shadow, ids(self.maps.sizes)
        self.book.service_ids.restore(found.service_ids)
        self.book.backend_ids.restore(found.backend_ids)
        return found

    def want(self, *services: SVC) -> State:
        """Assign ids to what is desired now."""
        self.state = self.book.assign(State(self.state.generation + 1, services))
        return self.state

    def sync(self) -> Applied:
        """Plan and apply once."""
        return apply(plan(self.state, self.shadow, paths, SNAT), self.maps, self.shadow)

    def serve(self, *services: SVC) -> Applied:
        """Want, plan, apply; nothing may fail."""
        self.want(*services)
        done = self.sync()
        assert done.complete, done
        return done


def ids(sizes: Sizes) -> IdAssigner:
    """Return an empty book of ids that fit the maps."""
    return IdAssigner(IdAllocator(limit=1 << 16), IdAllocator(limit=sizes.backends))


# --- any state of a small world ---

FRONTENDS = ("10.96.0.1:80", "10.96.0.1:53/UDP", "10.96.0.2:80", "10.96.0.2:80/i", "[fd00::1]:80", "[fd00::2]:443")
BACKENDS = {
    4: [f"10.244.1.{n}:8080" for n in range(1, 6)] + ["10.244.1.6:53/UDP"],
    6: [f"[fd00:1::{n}]:8080" for n in range(1, 5)],
}
RANGES = {4: ("10.0.0.0/8", "192.168.1.0/24", "0.0.0.0/0"), 6: ("fd00::/8", "::/0")}


@st.composite
def services(draw, frontend: str) -> SVC:
    """Draw everything a frontend can be."""
    family = 6 if frontend.startswith("[") else 4
    chosen = draw(st.lists(st.sampled_from(BACKENDS[family]), unique=True, max_size=5))
    groups = {"selectable": [], "unselectable": [], "slotless": []}
    fallback = draw(st.booleans())
    for text in chosen:
        group = draw(st.sampled_from(("selectable", "selectable", "unselectable", "slotless")))
        states = {
            "selectable": (TERMINATING,) if fallback else (ACTIVE,),
            "unselectable": (TERMINATING, QUARANTINED),
            "slotless": (MAINTENANCE, QUARANTINED, ACTIVE),
        }[group]
        groups[group].append(backend(text, draw(st.sampled_from(states)), draw(st.sampled_from((100, 100, 7)))))
    ranges = draw(st.lists(st.sampled_from(RANGES[family]), unique=True))
    sticky = draw(st.booleans())
    flags = ServiceFlags.ROUTABLE | (ServiceFlags.SESSION_AFFINITY if sticky else 0)
    return SVC(
        L3n4Addr.parse(frontend),
        **{name: tuple(group) for name, group in groups.items()},
        algorithm=draw(st.sampled_from(Algorithm)),
        session_affinity=sticky,
        source_ranges=tuple(CIDR.parse(text) for text in ranges),
        flags=ServiceFlags(flags | (ServiceFlags.SOURCE_RANGE if ranges else 0)),
        no_local_backend=draw(st.booleans()),
    )


@st.composite
def states(draw) -> tuple[SVC, ...]:
    """Draw the services of a State, wildcard rows among them."""
    chosen = draw(st.lists(st.sampled_from(FRONTENDS), unique=True))
    found = [draw(services(frontend)) for frontend in chosen]
    if draw(st.booleans()):
        found.append(SVC(L3n4Addr.parse("10.96.0.1:0/NONE"), wildcard=True))
    return tuple(found)


def backends_of(maps: LBMaps, frontend: L3n4Addr) -> set[str] | None:
    """Return the addresses a new flow to a frontend may be given, read from the map's bytes; None without a master."""
    digit, size = ("4", 4) if len(frontend.address) == 4 else ("6", 16)
    head = frontend.address + frontend.port.to_bytes(2, "big")
    tail = bytes((frontend.protocol.number, frontend.scope, 0, 0))
    master = maps.get(f"lb{digit}_service", head + bytes(2) + tail)
    if master is None:
        return None
    found = set()
    for slot in range(1, int.from_bytes(master[4:6], "little") + 1):
        entry = maps.get(f"lb{digit}_service", head + slot.to_bytes(2, "little") + tail)
        assert entry is not None, f"slot {slot} of {frontend} is missing"
        row = maps.get(f"lb{digit}_backend", entry[:4])
        assert row is not None, f"slot {slot} of {frontend} points at nothing"
        found.add(f"{row[:size].hex()}:{int.from_bytes(row[size : size + 2], 'big')}/{row[size + 2]}")
    return found


def wanted_of(svc: SVC) -> set[str]:
    """Return what `backends_of` must be in the end."""
    return {f"{b.address.address.hex()}:{b.address.port}/{b.address.protocol.number}" for b in svc.selectable}


def contents(maps: LBMaps) -> dict[str, object]:
    """Return all entries that belong to services: path records, whose generations tell the way, and counters are left out."""
    found: dict[str, object] = {name: sorted(maps.items(name)) for name in maps.specs}
    found |= {name: maps.maglev(name) for name in ("lb4_maglev", "lb6_maglev")}
    with maps.window("lb_filter", 0, maps.specs["lb_filter"].value_size) as window:
        found["lb_filter"] = bytes(window)
    return found
