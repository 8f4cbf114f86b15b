"""What a plan is made of: steps in the order they must happen, each a packed run of entries of one map. Pure data."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import Enum, IntEnum, auto
from itertools import pairwise
from operator import sub

from msgspec import Struct, field

from lbagent.errors import LbError
from lbagent.maps.layout import U32
from lbagent.model.address import L3n4Addr
from lbagent.model.maglev import Member
from lbagent.model.service import SVC
from lbagent.targets.bpf.shadow import ShadowFrontend


class Phase(IntEnum):
    """The order of writes: a new flow never meets a half-written service, and no slot points at nothing (docs/maps.md).

    Everything a service needs comes before its master (slot 0), everything it no longer needs after it.
    """

    ORPHAN_OUT = auto()  # entries of ids without a frontend: before the ids are assigned again
    ORPHAN_TABLE_OUT = auto()
    ORPHAN_REVERSE_OUT = auto()
    COUNTER_ZERO = auto()
    FILTER_IN = auto()
    BACKEND_IN = auto()
    PATH_RESET = auto()  # a record that still lives under another address: only after a broken restart
    PATH_BODY = auto()
    PATH_IN = auto()
    SLOT_IN = auto()
    AFFINITY_ROOM = auto()  # matches that leave a full map before others come
    AFFINITY_IN = auto()
    TABLE_IN = auto()
    RANGE_CLEAR = auto()  # ranges that no master asks for yet
    RANGE_CLOSE = auto()  # a full map: before ranges leave that name who is refused, all clients are refused
    MASTER_CLOSE = auto()
    RANGE_ROOM = auto()  # ranges that leave a full map before others come
    RANGE_IN = auto()
    REVERSE_IN = auto()
    MASTER_IN = auto()
    PORTS_IN = auto()  # prefixes of a range: they lead to a master
    PORTS_OUT = auto()
    MASTER_OUT = auto()
    SLOT_TAIL = (
        auto()
    )  # slots that were selectable until the master was written: only now may resting backends stand there
    SLOT_OUT = auto()
    AFFINITY_OUT = auto()
    TABLE_OUT = auto()
    RANGE_OUT = auto()
    RANGE_PLAIN = auto()  # ranges that had their own meaning while the master's flag turned
    REVERSE_OUT = auto()
    BACKEND_DOWN = auto()  # less alive than before
    PATH_OUT = auto()
    BACKEND_OUT = auto()


class Kind(Enum):
    """What a step does with its keys (and values)."""

    PUT = auto()
    DELETE = auto()
    TABLE = auto()  # keys are service ids, members say what each table is made of
    TABLE_OUT = auto()
    PATH_BODY = auto()  # keys are backend ids, values path records: all but the meta word
    PATH_META = auto()  # the meta word: port, generation, flags, next hop, MTU
    FILTER = auto()  # keys are bits to set
    COUNTER = auto()  # keys are indexes of lb_metrics to be zeroed


_KINDS = {
    Phase.COUNTER_ZERO: Kind.COUNTER,
    Phase.FILTER_IN: Kind.FILTER,
    Phase.PATH_RESET: Kind.PATH_META,
    Phase.PATH_BODY: Kind.PATH_BODY,
    Phase.PATH_IN: Kind.PATH_META,
    Phase.PATH_OUT: Kind.PATH_META,
    Phase.TABLE_IN: Kind.TABLE,
    Phase.TABLE_OUT: Kind.TABLE_OUT,
    Phase.ORPHAN_OUT: Kind.DELETE,
    Phase.ORPHAN_TABLE_OUT: Kind.TABLE_OUT,
    Phase.PORTS_OUT: Kind.DELETE,
    Phase.MASTER_OUT: Kind.DELETE,
    Phase.SLOT_OUT: Kind.DELETE,
    Phase.AFFINITY_ROOM: Kind.DELETE,
    Phase.AFFINITY_OUT: Kind.DELETE,
    Phase.RANGE_CLEAR: Kind.DELETE,
    Phase.RANGE_ROOM: Kind.DELETE,
    Phase.RANGE_OUT: Kind.DELETE,
    Phase.BACKEND_OUT: Kind.DELETE,
}
# Taken from under services: only when every one of them has got past its master.
GUARDED = frozenset({Phase.BACKEND_DOWN, Phase.PATH_OUT, Phase.BACKEND_OUT})

Owner = (
    int | tuple[int, ...]
)  # index into Plan.changes; several for what services share; NO_OWNER for what no frontend needs
NO_OWNER: Owner = ()


class Step(Struct):
    """Entries of one map in one phase, side by side; `owners` has one item an entry."""

    phase: Phase
    kind: Kind
    map: str
    keys: bytearray
    values: bytearray
    owners: list[Owner]
    members: list[tuple[Member, ...]]

    def add(self, owner: Owner, key: bytes, value: bytes = b"") -> None:
        """Append an entry."""
        self.owners.append(owner)
        self.keys += key
        self.values += value

    def extend(self, owners: list[Owner], keys: bytes, values: bytes = b"") -> None:
        """Append entries whose keys, and values, lie side by side."""
        self.owners += owners
        self.keys += keys
        self.values += values

    def key(self, index: int) -> bytes:
        """Return the key of an entry."""
        size = len(self.keys) // len(self.owners)
        return bytes(self.keys[index * size : (index + 1) * size])

    def value(self, index: int) -> bytes:
        """Return the value of an entry."""
        size = len(self.values) // len(self.owners)
        return bytes(self.values[index * size : (index + 1) * size])

    def number(self, index: int) -> int:
        """Return a key that is a number."""
        return int(U32.unpack_from(self.keys, index * 4)[0])

    def numbers(self, start: int, stop: int) -> array[int]:
        """Return keys start..stop, which are numbers."""
        return array("I", self.keys[start * 4 : stop * 4])

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield (first key, values side by side) of those of the entries start..stop whose keys, numbers, follow each other."""
        size, numbers = len(self.values) // len(self.owners), self.numbers(start, stop)
        values = bytes(self.values[start * size : stop * size])
        if numbers == array("I", range(numbers[0], numbers[0] + len(numbers))):  # of a start, without a step for each
            yield numbers[0], values
            return
        steps = enumerate(map(sub, numbers[1:], numbers), 1)
        ends = [at for at, step in steps if step != 1] + [len(numbers)]
        for first, end in pairwise([0, *ends]):
            yield numbers[first], values[first * size : end * size]


class FrontendChange(Struct):
    """One frontend: what the maps hold (`old`) and what they shall (`svc`); None is nothing."""

    frontend: L3n4Addr
    old: ShadowFrontend | None
    svc: SVC | None


class Plan(Struct):
    """Everything `apply` must do, in order. `refused` are changes (by index) of which nothing is written.

    `shortages` are changes of which a part is written: `FrontendChange.svc` is that part. `room` is what the maps have left
    before anything leaves, or had left when one was short of it. `share_room` is what namespaces have left of their shares, by
    map and namespace, in maps that cannot hold what all want.
    """

    changes: list[FrontendChange]
    steps: list[Step]
    refs: dict[int, int]
    services: tuple[SVC, ...] | None = None  # None: path writes only
    snat_bits: frozenset[int] | None = None
    refused: dict[int, LbError] = field(default_factory=dict)
    shortages: dict[int, LbError] = field(default_factory=dict)
    room: dict[str, int] = field(default_factory=dict)
    share_room: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    full_sync: bool = False

    @property
    def entries(self) -> int:
        """Return how many entries would be written or deleted; 0 when the maps are as they shall be."""
        return sum(len(step.owners) for step in self.steps)


class Steps:
    """Collects entries into steps."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Phase, str], Step] = {}

    def at(self, phase: Phase, map_name: str) -> Step:
        """Return the step of a phase and map."""
        found = self._steps.get((phase, map_name))
        if found is None:
            kind = _KINDS.get(phase, Kind.PUT)
            found = self._steps[phase, map_name] = Step(phase, kind, map_name, bytearray(), bytearray(), [], [])
        return found

    def ordered(self) -> list[Step]:
        """Return the steps that hold something, in the order they must happen."""
        return [self._steps[key] for key in sorted(self._steps) if self._steps[key].owners]
