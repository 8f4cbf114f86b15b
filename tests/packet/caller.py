"""A client port that talks to a frontend: its packets, and those of the backend that it reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lbagent.bpf.run.former_backends import FormerBackends
from lbagent.kernel import bpf_prog
from lbagent.maps.layout import FLOW4_SIZE, FLOW6_SIZE, FLOW_WAYS, LB_SWEEP, SWEEP_STEP
from tests.packet import expect
from tests.packet.plain_frames import plain
from tests.packet.world import TCP, XDP, BackendRow, Outcome, ServiceRow, World

if TYPE_CHECKING:
    from tests.packet.craft import Family

Endpoint = tuple[str, int]


def request(fam: Family, proto: int, client: str, port: int, frontend: Endpoint, flags: str) -> bytes:
    """Return a client's frame."""
    return plain(fam, proto, client, port, *frontend, flags)


def reply(fam: Family, proto: int, backend: BackendRow, to: Endpoint, flags: str) -> bytes:
    """Return a backend's frame: a remote one's to the SNAT port, a local one's to its client."""
    if backend.local:
        return expect.local_reply(fam, proto, backend, *to, flags)
    return expect.remote_reply(fam, proto, backend, to[1], flags, to=to[0])


@dataclass
class Caller:
    """One client port of a service. `backend` and `source` are the destination and source of the last packet that arrived."""

    world: World
    service: ServiceRow
    client: str = ""
    port: int = 40000
    hook: str = XDP
    backend: BackendRow | None = None
    source: Endpoint = ("", 0)
    endpoint: Endpoint = field(init=False)
    went: BackendRow | None = None  # where the last packet went; None: nowhere

    def __post_init__(self) -> None:
        """Take the family's client where none is named."""
        self.client = self.client or self.service.family.client
        self.endpoint = (self.client, self.port)

    @property
    def fam(self) -> Family:
        """The service's family."""
        return self.service.family

    @property
    def place(self) -> tuple[BackendRow | None, Endpoint]:
        """Destination and source of its packets."""
        return self.backend, self.source

    def send(self, flags: str = "A") -> Outcome:
        """Send a packet."""
        frontend = (self.service.address, self.service.port)
        out = self.world.run(self.hook, request(self.fam, self.service.proto, *self.endpoint, frontend, flags))
        self.went = next((row for row in self.service.backends if not out.dropped and _leads_to(out, row)), None)
        if self.went:
            self.backend, self.source = self.went, expect.source(out)
        return out

    def stays(self, flags: str = "A") -> bool:
        """Send a packet; return whether it has the same destination and source as the one before."""
        before = self.place
        self.send(flags)
        return self.went is not None and self.place == before

    def answer(self, flags: str = "A") -> Outcome:
        """Let the backend send a packet back to where the last one came from."""
        assert self.backend is not None
        frame = reply(self.fam, self.service.proto, self.backend, self.source, flags)
        if self.backend.local:
            return expect.at_pod(self.world, frame)
        return self.world.run(self.hook, frame, self.world.net.lb1)

    def is_answered(self, flags: str = "A") -> bool:
        """Let the backend answer; return whether this client gets it, from the frontend."""
        out = self.answer(flags)
        if out.dropped:
            return False
        frontend = (self.service.address, self.service.port)
        return (expect.source(out), expect.destination(out)) == (frontend, self.endpoint)

    def establish(self) -> Outcome:
        """Open the connection (TCP: three packets), and exchange some data. Returns the outcome of the first packet."""
        first = self.send("S")
        if first.dropped or self.backend is None:
            return first
        if self.service.proto == TCP:
            assert self.is_answered("SA")
            assert self.stays()
        assert self.is_answered("PA")
        assert self.stays()
        return first


def _leads_to(out: Outcome, row: BackendRow) -> bool:
    return expect.destination(out) == row.endpoint


def sweep(world: World, fam: Family, share: float = 1.0, *, former: bool = False) -> tuple[int, int]:
    """Run the sweeper over the first part of a family's table; return its live flows, and until when ages are reliable then.

    `former`: let it read lb_former_backend.
    """
    size = FLOW4_SIZE if fam.version == 4 else FLOW6_SIZE
    buckets = int(world.maps.specs[f"lb{fam.version}_flow"].value_size // size // FLOW_WAYS * share)
    data = LB_SWEEP.pack(0, buckets, 0, int(former), 0, 0)
    out = bpf_prog.prog_test_run(world.programs[f"sweep{fam.version}"], data, repeat=-(-buckets // SWEEP_STEP))
    return out.retval, int(LB_SWEEP.unpack(out.data[: LB_SWEEP.size])[-1])


def sweep_former(world: World, fam: Family, former: FormerBackends) -> None:
    """Sweep a family's table as the agent does after backends left a frontend."""
    is_due = former.begin_sweep()
    sweep(world, fam, former=is_due)
    former.end_sweep()
