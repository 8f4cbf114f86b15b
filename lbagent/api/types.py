"""What goes over the agent's socket, as JSON. The field names are a contract: scripts read them. Rows of lists: listed_fields.py.

The command line reads the same JSON as plain dicts, without this module's help: it has 150 ms to start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct, field

from lbagent.targets.data_plane import CgroupStatus, DeviceStatus, OutputStatus


class DrainProgress(Struct, gc=False):
    """A drain of a backend: it is kept over restarts of the agent until the backend's state is set or cleared."""

    state: str  # draining; drained: its last flow has ended; timed-out: some flows were left
    since: float  # seconds since the epoch
    timeout_s: float
    remaining_s: float  # until it times out; 0 when it has ended
    flows: int  # at the last count, of one that has ended at its end; -1: not counted yet
    flows_at_start: int  # -1: not counted yet
    counted: bool  # `flows` are of a count that began after the drain
    ended: float = 0.0  # seconds since the epoch; 0: it goes on


class DrainRow(DrainProgress, kw_only=True, gc=False):
    """The drain of a backend, with its address."""

    address: str  # 10.0.0.1:8080/TCP


class NamedBackends(Struct, kw_only=True, forbid_unknown_fields=True):
    """The backends that a request names. `node` and `service` together: those of this Service on this node."""

    command: ClassVar[str] = ""  # what a body of this kind is called in messages
    addresses: list[str] = []  # ADDRESS:PORT[/PROTOCOL], pod/NAMESPACE/NAME
    hosts: list[str] = []  # ADDRESS: every backend there
    node: str = ""
    service: str = ""  # NAMESPACE/NAME


class SetState(NamedBackends, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v1/backends/state."""

    command: ClassVar[str] = "set-state"
    state: str
    spare_last: bool = False  # refuse (409, `last_backend`) what would leave a Service without a backend


class StartDrain(NamedBackends, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v1/backends/drain."""

    command: ClassVar[str] = "drain"
    timeout_s: float
    spare_last: bool = False  # as in SetState


class ClearState(NamedBackends, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v1/backends/clear-state."""

    command: ClassVar[str] = "clear-state"


class Cleared(Struct):
    """The answer to ClearState."""

    cleared: list[str]  # addresses and pod/NAMESPACE/NAME whose set state was forgotten
    backends: list[dict[str, object]]  # BackendRow (listed_fields.py): those of them that are served, as they are now


class Differences(Struct):
    """The answer to GET /v1/verify."""

    differences: list[str]  # sentences


class Generation(Struct):
    """The answer to GET /v1/wait."""

    generation: int  # of the State that is in the maps


class SourceStatus(Struct):
    """One source of objects."""

    name: str  # the folder, the operator's file
    synced: bool  # the first full list was read
    objects: int
    generation: int = 0  # how often its objects changed
    messages: list[str] = field(default_factory=list)  # what it refused, with file, object and field


class TargetStatus(Struct):
    """One place where the State is made true: a data plane (`bpf`)."""

    name: str
    ready: bool  # the first full State is in force
    in_sync: bool  # the latest State is in force, whole
    generation: int  # of the State in force
    failing: int = 0  # frontends whose last write failed
    waiting: str = ""  # why it is not ready
    error: str = ""  # what fails now


class MapUsage(Struct, gc=False):
    """How full a map is. `namespaces`: those that use most of it, where it is at least 80 % full."""

    name: str
    used: int
    size: int
    namespaces: dict[str, int] = {}


class FailingService(Struct, gc=False):
    """A frontend whose last write failed: what was written before keeps serving."""

    frontend: str
    service: str  # NAMESPACE/NAME
    error: str
    retry_in_s: float = 0.0


class ConditionStatus(Struct):
    """Something that is wrong now, or (`mended`) that was wrong a moment ago and that the agent has put right."""

    name: str  # the word of lbagent_condition
    subject: str  # the device, map, address, ... it is about
    text: str  # what is so
    remedy: str = ""  # what to do
    since: float = 0.0  # seconds since the epoch
    mended: bool = False
    severity: str = (
        "fault"  # degraded: of objects that anyone may write; fault: of the node, `lbagent status` ends with 1
    )


class Status(Struct):
    """How the agent is. `ready`: the first full State is in the kernel."""

    ready: bool
    version: str
    pid: int
    node: str
    started_at: float  # seconds since the epoch
    generation: int  # of the State that is in the maps
    services: int
    frontends: int
    backends: int
    attach: str = ""  # the --attach word
    bpffs: str = ""
    artifact: str = ""  # hash of the loaded programs
    sweeps: int = 0  # finished sweeps of the flow tables; a drain waits for one that began after it
    sources: list[SourceStatus] = field(default_factory=list)
    targets: list[TargetStatus] = field(default_factory=list)
    devices: Sequence[DeviceStatus] = field(default_factory=list)
    cgroups: Sequence[CgroupStatus] = field(default_factory=list)  # with --socket-lb: one
    outputs: Sequence[OutputStatus] = field(default_factory=list)
    maps: list[MapUsage] = field(default_factory=list)
    drains: list[DrainRow] = field(default_factory=list)  # those that go on first
    failing: list[FailingService] = field(default_factory=list)
    conditions: list[ConditionStatus] = field(default_factory=list)  # what is wrong now
    problems: list[str] = field(default_factory=list)  # sentences a person should look at; some are conditions, too


class VipRow(Struct):
    """An address that is to be announced, and one way of doing it; its JSON: VIPS in listed_fields.py."""

    address: str
    pool: str
    mode: str  # l2, bgp
    state: str  # announced (by this node), standby (another node, or soon), conflict, withdrawn
    node: str  # that announces it, as far as this one knows; ''
    services: list[str]  # NAMESPACE/NAME
    reason: str  # why it is not announced by this node; ''


class VipAnswer(Struct):
    """Whether an address, or the addresses of a Service, are announced, and why."""

    announced: bool  # somewhere
    lines: list[str]  # sentences


class BgpPeerRow(Struct, gc=False, omit_defaults=True):
    """A router that this node has a BGP session with. Its JSON: PEERS in listed_fields.py."""

    address: str
    asn: int
    state: (
        str  # established; idle, connect, active, opensent, openconfirm (RFC 4271 8.2.2); down: no BIRD, or no session
    )
    bfd: str  # up, down, init, admindown; off: it is not asked for
    advertised: int  # routes that the router was told
    reason: str = ""  # why the session is not established, and what to do; left out when it is


class ApilbServer(Struct):
    """A server of an instance of native mode."""

    address: str  # as its file says: HOST or HOST:PORT
    up: bool  # one of its addresses is; also while none of them was checked yet
    since: float  # seconds since the epoch; 0: not checked yet
    last: str  # the last check, in words
    connections: int = 0  # of this host's processes, at this moment


class ApilbRow(Struct):
    """An instance of native mode that this host serves."""

    pool: str
    name: str
    bind_address: str
    on_marked_down: str  # keep, reset
    status: str  # running, or why its bind is not served
    servers: list[ApilbServer]


class Problem(Struct, omit_defaults=True):
    """Every answer that is not 2xx."""

    error: str  # one sentence
    exit_code: int
    last_backend: bool = False  # a Service would have no backend left; without `spare_last` it is done
