"""DataPlane: what the agent, its API, health ports and metrics use of a data plane, whichever it is.

A data plane is a Target (sync/target_protocol.py): the loop gives it each State, and `reconcile` plans it and applies the plan. It
is one call: a plan is valid only for what is in force at that moment, so no caller can keep or compare one. Frontends that could
not be planned or written are in `failing`.

It also opens and closes, shows what it serves, and counts flows and packets. The agent has one *serving* data plane; `svc list`,
`status` and the metrics read all that translate packets as one (targets/joined_plane.py). Further ones are opened, started and
reconfigured as well, and serve after their own first pass. The agent is ready when all that translate packets are. Maps, programs
and chains stay behind this module. `features` names what a data plane can do; a method whose feature is not among them returns an
empty value.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from lbagent.config import Config
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.check import CheckGroup
from lbagent.model.family import Family
from lbagent.model.handshakes import Handshakes
from lbagent.model.service import SVC
from lbagent.model.state import State
from lbagent.net.snapshot import NodeNetwork
from lbagent.probes.backend_check import CheckedService
from lbagent.probes.passive_checks import WaitingHandshake
from lbagent.render.renderer_types import Difference
from lbagent.sync.backoff import Failure
from lbagent.sync.target_protocol import Target
from lbagent.targets.client_addresses import ClientAddresses

Traffic = tuple[int, int]  # packets, bytes
Usage = tuple[int, int]  # entries in use, entries that there can be
OnNetwork = Callable[[NodeNetwork], None]
SocketFrontend = tuple[bytes, int]  # what a process connected to: packed address, port
DeviceAddress = tuple[int, bytes]  # ifindex, packed address
FrontendOf = Callable[[int, L3n4Addr], SocketFrontend | None]  # by cookie of a TCP socket, and the backend it got


class Feature(StrEnum):
    """What a data plane can do. The words are those of `lbagent renderers`: never rename one."""

    AFFINITY = "affinity"  # session affinity by client address
    ANNOUNCE = "announce"  # answers ARP and NDP for announced addresses (--announce)
    COUNTERS = "counters"  # packets and bytes by frontend, backend and reason
    ECHO_REPLY = "echo_reply"  # addresses of Services answer pings while they take new flows
    FLOWS = "flows"  # lists and counts flows
    L7_PROXY = "l7_proxy"  # gives packets to a proxy on this node (lbagent.io/l7-proxy-port)
    MAGLEV = "maglev"
    PORT_RANGES = "port_ranges"  # serves a range of ports (lbagent.io/port-range)
    REJECT = "reject"  # RST and ICMP answers where a frontend has no backend
    SNAT = "snat"
    SOCKETS = "sockets"  # sockets of the node's own processes (--socket-lb, --apilb)
    SOURCE_RANGES = "source_ranges"
    PASSIVE_CHECKS = "passive_checks"  # flows tell which backends do not answer (health-check: passive)
    VIP_CHECKS = "vip_checks"  # health checks through a Service reach a certain backend (via=vip)
    WEIGHTS = "weights"


class FlowCounts(NamedTuple):
    """Live flows by backend id (a missing id has none; None: not counted yet), and how long ago they were counted."""

    live: Mapping[int, int] | None
    age_s: float = 0.0


class LiveFlows(NamedTuple):
    """What is in the kernel, read without the agent: live flows by frontend and backend (None: not known), and the frontends.

    `services` are without names, as the kernel has none; () where the flows alone can be read. `left_out`: which flows are not
    counted, a sentence.
    """

    flows: Mapping[tuple[L3n4Addr, L3n4Addr | None], int]
    services: Sequence[SVC] = ()
    left_out: str = ""


class RecordedPackets(Struct):
    """What a data plane has for `lbagent record dump`, read without the agent.

    `events`: lines of JSON; `packets`: a pcapng file; `maps`: the lines of `map dump`. `clients` has the replacements of addresses
    of clients, where they are replaced. `problems`: what could not be read, sentences.
    """

    events: bytes = b""
    packets: bytes = b""
    maps: str = ""
    clients: ClientAddresses | None = None
    problems: list[str] = []


class Flow(Struct, frozen=True, gc=False):
    """One flow. `state` and `mode` are words of the data plane; `backend` is None for an id that no backend of the State has."""

    client: L3n4Addr
    frontend: L3n4Addr
    backend: L3n4Addr | None
    state: str
    mode: str
    snat_port: int = 0


class EgressPath(NamedTuple):
    """How packets get to a backend: BackendRow's fields `way`, `device` and `way_reason`."""

    way: str = ""
    device: str = ""
    reason: str = ""


EgressOf = Callable[[Backend], EgressPath]


class DeviceStatus(Struct):
    """One device that takes service traffic."""

    name: str
    ifindex: int
    hooks: list[str]  # xdp, xdp-generic, tc_after_xdp, tc_ingress, tc_egress
    problem: str = ""


class CgroupStatus(Struct):
    """The cgroup whose processes reach Services by socket programs."""

    path: str
    hooks: list[str]  # connect4, connect6, sendmsg4, sendmsg6, recvmsg4, recvmsg6, getpeername4, getpeername6


class OutputStatus(Struct):
    """One device by which remote backends are reached."""

    name: str
    kind: str  # '' for a NIC, else veth, bridge, vlan, ...
    way: str  # xdp: XDP programs send by it; tc: every packet for it goes by tc
    reason: str = ""  # why tc, where XDP programs run on other devices


class PlaneStatus(Struct, frozen=True, kw_only=True):
    """What `lbagent status` shows of a data plane: the fields of `Status` with these names."""

    frontends: int = 0  # in force, wildcard rows not counted
    backends: int = 0
    attach: str = ""
    bpffs: str = ""
    artifact: str = ""
    sweeps: int = 0
    devices: Sequence[DeviceStatus] = ()
    cgroups: Sequence[CgroupStatus] = ()
    outputs: Sequence[OutputStatus] = ()
    usage: Mapping[str, Usage] = {}  # by table


class Counters(Struct, frozen=True, kw_only=True):
    """What a data plane counted. An empty mapping: it counts nothing of that kind."""

    reasons: Mapping[str, Traffic] = {}  # by the word of a verdict's reason
    services: Mapping[int, Traffic] = {}  # by id of a frontend of the State
    backends: Mapping[int, Traffic] = {}  # by id of a backend of the State
    live_flows: Mapping[int, int] = {}  # by id of a backend, when they were counted last
    send_errors: Mapping[str, int] = {}  # by device: frames that it did not take
    snat_ports: int = 0  # of each remote backend, with each source address
    snat_addresses: Mapping[Family, int] = {}  # extra SNAT addresses that the node has
    sessions: Mapping[str, int] = {}  # live flows by protocol, when they were counted last
    sessions_deleted: Mapping[str, int] = {}  # by protocol: connections that were ended because their backend is gone
    session_delete_errors: int = 0
    stale_backends: int = 0  # gone from the slices, and kept for their flows
    stale_backends_evicted: int = 0  # of them left early, for want of room
    handshakes: Mapping[int, Handshakes] = {}  # by id of a backend of the State: those that were timed
    new_flows: Mapping[int, int] = {}  # by id of a frontend of the State
    snat_use: float | None = None  # of the backend whose SNAT ports are used most, 0 to 1; None: not counted
    snat_reclaimed: int = 0  # SNAT ports that new flows took from flows that were not established
    events: tuple[int, int] = (0, 0)  # recorded, left out by --event-rate


class SelfTestResult(NamedTuple):
    """What a data plane's self-test found. `fault` '': nothing wrong; `runs` 0: it has not run yet.

    `without`: why it ran without packets; `duration_s`: of the last run.
    """

    fault: str = ""
    runs: int = 0
    without: str = ""
    duration_s: float = 0.0


@runtime_checkable
class SelfTestedPlane(Protocol):
    """A data plane that tests whether it forwards."""

    @property
    def self_test(self) -> SelfTestResult:
        """What the last test found."""


class PacketStreams(Protocol):
    """Has packets recorded in the event rings as long as a reader requests it."""

    def stream(self, every: int, *, frames_after: bool) -> AsyncGenerator[bytes, None]:
        """Return server-sent events: `sampling` once one in `every` packets is recorded, then a comment each second.

        `frames_after`: with the frames that leave. Closing it ends the request. Raises ConfigError, Refused.
        """


@runtime_checkable
class SampledPlane(Protocol):
    """A data plane that can record every packet."""

    @property
    def sampling(self) -> PacketStreams:
        """Its readers."""


@runtime_checkable
class MarkingPlane(Protocol):
    """A data plane with Feature.VIP_CHECKS: it sends new flows of marked sockets of this node to a certain backend."""

    def check_mark(self, backend: L3n4Addr) -> int:
        """Return the mark; 0: it does not serve the backend, or cannot send flows to it now."""


@runtime_checkable
class ObservingPlane(Protocol):
    """A data plane with Feature.PASSIVE_CHECKS: the ObservedFlows of probes/passive_checks.py."""

    def waiting_handshakes(self, services: Mapping[str, CheckedService]) -> Sequence[WaitingHandshake]:
        """Return the flows to these Services whose SYN was repeated, and that have no answer. Raises LbError."""

    def answered_handshakes(self, services: Mapping[str, CheckedService]) -> Mapping[L3n4Addr, int]:
        """Return how many flows each backend of these Services has answered so far. Raises LbError."""


def self_tests(planes: Iterable[object]) -> list[SelfTestResult]:
    """Return the last self-test of each data plane that has one."""
    return [plane.self_test for plane in planes if isinstance(plane, SelfTestedPlane)]


def sessions_of(state: State, live: Mapping[int, int] | None) -> dict[str, int]:
    """Return the live flows by protocol (`tcp`), of counts by backend id; None: not counted yet."""
    found: dict[str, int] = {}
    if not live:
        return found
    for address, backend in state.backends.items():
        if count := live.get(backend.id):
            word = address.protocol.name.lower()
            found[word] = found.get(word, 0) + count
    return found


class Counts(Struct):
    """What a data plane did since it was opened."""

    syncs: int = 0  # plans applied
    errors: int = 0
    writes: int = 0
    last_duration_s: float = 0.0


class ShownState(Protocol):
    """The State that is in force, and since when: of one data plane, or of all that translate (targets/joined_plane.py)."""

    first_pass: asyncio.Event  # ready, or something waits while what an earlier agent left continues to serve

    @property
    def generation(self) -> int:
        """Counter of the States that were put in force; grows and never repeats while the agent runs."""

    @property
    def failing(self) -> Mapping[L3n4Addr, Failure]:
        """Frontends that could not be written, and when each is retried."""

    @property
    def waiting(self) -> str:
        """Why it is not ready although it has a State: one sentence, '' when there is no reason."""

    @property
    def state(self) -> State:
        """The State in force, with ids."""

    @property
    def current_state(self) -> State:
        """The State in force; before the first pass what an earlier agent left."""

    @property
    def wanted(self) -> State:
        """The State that was requested last, without ids: what is in force lacks what failed."""

    async def changed_from(self, generation: int) -> int:
        """Return the generation in force as soon as it differs from `generation`."""


class ServedState(ShownState, Target, Protocol):
    """The State of a data plane."""


class ShownPlane(ShownState, Protocol):
    """What requests and metrics read."""

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do."""

    @property
    def counts(self) -> Counts:
        """What it did."""

    @property
    def sweeps(self) -> int:
        """How often the flows were counted: a count that began later than a change of the State has a higher number."""

    @property
    def restored(self) -> int:
        """Frontends that an earlier agent left, as long as no pass was made."""

    @property
    def retained(self) -> int:
        """Frontends that stay as an earlier agent left them because a source is untrusted."""

    def status(self) -> PlaneStatus:
        """Return what `lbagent status` shows."""

    def problems(self) -> Sequence[str]:
        """Return what is wrong and has no line of its own in the status, one sentence each."""

    def usage(self) -> Mapping[str, Usage]:
        """Return how full each table is."""

    def largest_namespaces(self, table: str) -> dict[str, int]:
        """Return which namespaces use most of a table."""

    def backend_states(self) -> Mapping[BackendState, int]:
        """Return how many backends are in which state."""

    def backend_count(self) -> int:
        """Return how many backends the frontends in force have."""

    def devices_attached(self) -> dict[str, bool]:
        """Return whether each device takes traffic, by name."""

    def egress_paths(self) -> EgressOf:
        """Return a function that returns, as of now, how packets get to a backend."""

    def handshakes(self, backends: Sequence[int]) -> Mapping[int, Handshakes]:
        """Return the timed handshakes of backends, by id, of those that had one. Raises KernelError."""

    def counters(self, *, backends: bool = True) -> Counters:
        """Return what was counted; without `backends` nothing of single backends. Raises KernelError."""

    async def count_flows(self) -> FlowCounts:
        """Count live flows now; where that takes long or fails, return the last counts with their age."""

    def flows(self) -> Iterator[Sequence[Flow]]:
        """Yield the flows, some at a time: the caller may yield to other tasks in between. Raises KernelError."""

    def frontends_of_sockets(self, family: Family) -> FrontendOf:
        """Return a function that returns the frontend a socket connected to when it got a backend; None: not known.

        It holds for the moment of this call. Blocks; raises KernelError.
        """

    async def verify(self) -> Sequence[Difference]:
        """Return in what the data plane differs from what was written and is wanted. Raises LbError, OSError."""

    async def repair(self) -> Sequence[Difference]:
        """Return what `verify` returns, and have it written again by the next pass. Raises LbError, OSError."""

    @property
    def difference_count(self) -> int:
        """How many differences the last comparison found: that of a command, or the one of every minute."""


class DataPlane(ServedState, ShownPlane, Protocol):
    """What serves. The order of calls: `open`, `start`, States by `reconcile`, `serve` after the first pass, `close`."""

    on_network: OnNetwork  # called with each new snapshot of the node's network, and in `start`

    @property
    def network(self) -> NodeNetwork:
        """The node's network as it is now; EMPTY before `start`."""

    def checks(self) -> CheckGroup[Any]:
        """Return the checks of its own parts, and what they read. Their findings are conditions of the agent."""

    def replace_proxy(self) -> None:
        """Take note, before `open`, that another proxy serves until every device is attached: `serve` begins the first flow."""

    async def open(self, require: Callable[[], None]) -> Mapping[str, str]:
        """Take what it needs, and read what an earlier agent left; return the settings that are not in force, and why.

        `require` is called before anything is created or changed, and raises what keeps the agent from starting. Raises LbError.
        """

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Start what runs beside the passes; tasks go into the group. Raises what keeps the agent from starting."""

    async def serve(self, group: asyncio.TaskGroup) -> None:
        """Let packets meet what the first pass put in force. Raises LbError."""

    def check(self, config: Config) -> None:
        """Raise LbError where a new configuration cannot be used; nothing is changed."""

    async def reconfigure(self, config: Config) -> dict[str, str]:
        """Take over a new configuration; return which settings are not in force, and why. Raises LbError."""

    @property
    def is_unfinished(self) -> bool:
        """Whether a change of settings stopped half-way: nothing is lost, and `reconfigure` continues it."""

    def close(self) -> None:
        """Let go of everything; what is in force continues to serve."""

    def take_back(self) -> None:
        """Remove what `open` made, when nothing was there before. For a first start that failed."""


class AddressEntries(Protocol):
    """Entries of a data plane that end by themselves: a MAC address by device and address.

    The agent moves their end on. One that dies leaves entries that last for `restart_grace_s`: the next agent takes them over.
    """

    restart_grace_s: float

    @property
    def places(self) -> Mapping[DeviceAddress, bytes]:
        """What an earlier agent left that has not ended."""

    def drop_ended(self, now: float) -> None:
        """Remove from `places` what has ended by now; `now` is of CLOCK_MONOTONIC."""

    def refresh_at(self) -> float:
        """Return when `write` must be called again though nothing changed; monotonic seconds, infinite without entries."""

    def has_ended(self, now: float) -> bool:
        """Return whether the entries ended by themselves because `write` was not called; `now` is of CLOCK_MONOTONIC."""

    def write(self, wanted: Mapping[DeviceAddress, bytes], now: float) -> None:
        """Have exactly these entries; `now` is of CLOCK_MONOTONIC. Raises KernelError, MapFull.

        The same object as before is taken to hold the same.
        """


class AddressResponder(NamedTuple):
    """What answers for announced addresses."""

    answers: AddressEntries  # ARP and NDP requests at the device get this MAC address
    former_leaders: AddressEntries  # segments of unknown connections are forwarded to this MAC address


class LeftOver(Protocol):
    """The data plane of an earlier agent, from which another one takes over."""

    name: str

    @property
    def problem(self) -> str:
        """What `status` shows of it."""

    async def open(self, served: DataPlane, require: Callable[[], None]) -> None:
        """Take its lock; `served` takes over. Nothing changes. Raises Conflict while the earlier agent runs, LbError."""

    async def run(self) -> None:
        """Let the other one have what is new, and end when nothing of this one is left. Raises LbError."""

    def close(self) -> None:
        """Close every descriptor; what is in force serves on."""


class AnnouncingPlane(DataPlane, Protocol):
    """A data plane with Feature.ANNOUNCE."""

    def responder(self, restart_grace_s: float) -> AddressResponder:
        """Return its entries of announced addresses. After `open`."""

    def announcing_devices(self) -> Collection[str]:
        """Return the names of the devices at which requests are answered."""

    def carriers(self) -> Collection[int]:
        """Return the devices by which frames can leave, by ifindex."""
