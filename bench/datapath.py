"""The packet programs by BPF_PROG_TEST_RUN: established, reply, new flow, packet of no service, SYN flood; both families."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench import ours as our_programs
from bench.harness import QUICK_ROUNDS, ROUNDS, Spread, Subject, net, pinned, ratio, rounds
from bench.ours import Ours
from bench.programs import load
from bench.textbook import Textbook
from bench.world import World, world
from bench.wrapper import ACK, DATA, SYN, SYN_ACK, Plan, Tuple, Wrapper, tuple_of
from lbagent.maps.reasons import Reason

TABLE = 1 << 20  # flows each table can hold
FLOWS = (1, 4096, 65536, 524288)
NEW_BURST = 4096  # all new flows of a row fill less than a third of the table
TX, PASS, DROP = 3, 2, 1


@dataclass(frozen=True)
class Row:
    """One measured case. `*_ns` are net of the wrapper; ratios are of paired rounds."""

    case: str
    family: int
    flows: int
    loop_ns: Spread
    ours_ns: Spread
    textbook_ns: Spread
    ours_over_textbook: Spread
    ours_over_loop: Spread
    target_textbook: float = 0.0  # 0: none
    target_loop: float = 0.0
    notes: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the record for results.json."""
        return asdict(self)


class Bench:
    """The subjects of one family on one set of tables."""

    def __init__(self, shape: World, ours: Ours, textbook: Textbook, count: int) -> None:
        """Put a wrapper before each program."""
        self.shape, self.ours, self.textbook, self.count = shape, ours, textbook, count
        self.loop = load("loop", shape.family)
        self.wrappers = {
            "wrapper": Wrapper(shape.family, self.loop),
            "ours": Wrapper(shape.family, ours.fd),
            "textbook": Wrapper(shape.family, textbook.fd),
        }

    def close(self) -> None:
        """Unload the wrappers."""
        for wrapper in self.wrappers.values():
            wrapper.close()

    def set(self, plan: Plan, names: Sequence[str] = ("wrapper", "ours", "textbook")) -> None:
        """Give the wrappers their packets."""
        for name in names:
            self.wrappers[name].set(plan)

    def subject(self, name: str) -> Subject:
        """Return a wrapped program as something to run."""
        wrapper = self.wrappers[name]
        return Subject(name, wrapper.fd, wrapper.frame, self.ours.ifindex)

    def send(self, plan: Plan, count: int) -> None:
        """Send that many packets of a plan through both programs, unmeasured."""
        self.set(plan)
        for name in ("ours", "textbook"):
            self.subject(name).run(count)

    def measure(self, limit: int = 0) -> dict[str, list[float]]:
        """Run loop, wrapper, ours and textbook in turns."""
        subjects = [Subject("loop", self.loop, self.wrappers["wrapper"].frame, self.ours.ifindex)]
        subjects += [self.subject(name) for name in self.wrappers]
        for subject in subjects:
            if limit and subject.name != "loop":
                subject.limit = subject.repeat = limit
        self.values = rounds(subjects, self.count)
        self.verdicts = {subject.name: subject.verdict for subject in subjects}
        return self.values

    def row(
        self,
        case: str,
        flows: int,
        verdict: int,
        textbook: float = 0.0,
        loop: float = 0.0,
        limit: int = 0,
        may_drop: bool = False,
        **extra: Any,
    ) -> Row:
        """Measure the wrappers' present packets and return a row; a wrong verdict ends the run."""
        before = self._counts()
        values = self.measure(limit)
        allowed = (verdict, DROP) if may_drop else (verdict,)  # of the burst's last packet
        wrong = {name: self.verdicts[name] for name in ("ours", "textbook") if self.verdicts[name] not in allowed}
        if wrong:
            raise RuntimeError(f"{case}, IPv{self.shape.family}, {flows} flows: verdict {wrong}, expected {verdict}")
        mine, theirs = net(values, "ours"), net(values, "textbook")
        counted = {reason.name.lower(): n for reason, n in ((r, self._counts()[r] - before[r]) for r in before) if n}
        return Row(
            case, self.shape.family, flows, Spread.of(values["loop"]), Spread.of(mine), Spread.of(theirs),
            ratio(mine, theirs), ratio(mine, values["loop"]), textbook, loop, extra={**extra, "ours_counted": counted},
        )  # fmt: skip

    def _counts(self) -> dict[Reason, int]:
        return {reason: self.ours.counted(reason) for reason in Reason}

    # --- cases ---

    def request_plan(self, flows: int, flags: int = ACK) -> Plan:
        """Return client packets to the service with remote backends."""
        return Plan(Tuple(self.shape.client, self.shape.remote.vip, 0, self.shape.remote.port), flows, flags)

    def establish(self, flows: int) -> None:
        """Open flows in both programs: a SYN and its SYN-ACK, an ACK and data of the backend.

        The order differs from the measurement's: an LRU allocates its elements in sequence, and visiting them in that order
        would improve its figures by up to 40 %.
        """
        self.send(replace(self.request_plan(flows, SYN), in_order=True, answer=SYN_ACK), 2 * flows)
        self.send(replace(self.request_plan(flows, ACK), in_order=True, answer=DATA), 2 * flows)

    def established(self, flows: int) -> Row:
        """Measure packets of flows that are open."""
        self.establish(flows)
        self.set(self.request_plan(flows))
        targets = {1: (0.75, 2.3), 65536: (0.70, 0.0)}.get(flows, (0.0, 0.0))
        return self.row("established, DNAT+SNAT", flows, TX, *targets)

    def replies(self, flows: int) -> Row:
        """Measure the backends' answers on the flows that `established` left open."""
        listed = replace(self.request_plan(flows), listed=True, in_order=True)
        for name in ("ours", "textbook"):
            wrapper = self.wrappers[name]
            wrapper.set(self.request_plan(flows))  # the list is read in order (prefetched), the flows in it are not
            subject = self.subject(name)
            sent = [tuple_of(subject.once()[1]) for _ in range(flows)]
            wrapper.fill_list([Tuple(t.dst, t.src, t.dport, t.sport) for t in sent])
            wrapper.set(listed)
        self.wrappers["wrapper"].fill_list([Tuple(t.dst, t.src, t.dport, t.sport) for t in sent])
        self.wrappers["wrapper"].set(listed)
        for name in ("ours", "textbook"):
            self.subject(name).run(
                flows
            )  # the first reply of a flow in 8 s renews its lease: that is not the usual one
        targets = {1: (0.75, 0.0), 65536: (0.70, 0.0)}.get(flows, (0.0, 0.0))
        return self.row("reply, SNAT", flows, TX, *targets)

    def new(self, case: str, vip: bytes, port: int, verdict: int, target: float) -> Row:
        """Measure SYNs of flows never seen before."""
        self.set(Plan(Tuple(self.shape.flooder, vip, 0, port), 1 << 30, SYN, in_order=True))
        return self.row(case, 0, verdict, target, limit=NEW_BURST)

    def no_service(self, flows: int) -> Row:
        """Measure packets to no service."""
        self.set(Plan(Tuple(self.shape.client, self.shape.stranger, 0, 443), flows, ACK))
        return self.row("packet of no service", flows, PASS, 0.75 if flows == 1 else 0.0, 1.5 if flows == 1 else 0.0)


@contextlib.contextmanager
def bench(family: int, count: int, flows: int = TABLE, snat: int = 0, singles: Sequence[int] = ()) -> Iterator[Bench]:
    """Load both programs with tables for `flows` flows; `singles`: protocols of further services, of one backend each."""
    shape = world(family, singles=singles)
    with our_programs.opened(shape, flows, snat) as ours:
        textbook = Textbook(shape, flows, ours.ifindex)
        made = Bench(shape, ours, textbook, count)
        try:
            yield made
        finally:
            made.close()
            textbook.close()


def measure(family: int, *, quick: bool) -> Iterator[Row]:
    """Yield every row of a family."""
    count = QUICK_ROUNDS if quick else ROUNDS
    sizes = FLOWS[:3] if quick else FLOWS
    with pinned():
        with bench(family, count) as made:
            yield made.no_service(1)
            yield made.no_service(65536)
            for flows in sizes:
                yield made.established(flows)
                if flows <= 65536 or not quick:
                    yield made.replies(flows)
        with bench(family, count) as made:
            yield made.new("new flow, SNAT", made.shape.remote.vip, made.shape.remote.port, TX, 0.70)
        with bench(family, count) as made:
            yield made.new("new flow, local backend", made.shape.local.vip, made.shape.local.port, PASS, 0.50)
        with bench(family, count, snat=2 * TABLE) as made:
            fill = replace(made.request_plan(1 << 30, SYN), base=1 << 24)
            made.send(fill, 3 * TABLE)
            yield made.new("new flow, SNAT, tables full", made.shape.remote.vip, made.shape.remote.port, TX, 0.70)


__all__ = ["Row", "bench", "measure"]
