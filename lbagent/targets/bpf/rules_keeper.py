"""Keeps the rules of Services about new flows in the maps.

lb_rules has a record for each Service with rules, lb_rules_of its number by the id of each frontend, lb_backend_flows weight and
start of each backend. They are written before the frontends that lead there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from lbagent.bpf.load.program_settings import tick_shift
from lbagent.bpf.run.rule_counts import RuleCounts, TickOf, tick_now
from lbagent.kernel.jiffies import hz
from lbagent.maps import frontend_codec
from lbagent.maps.frontend_codec import has_rules, weights_differ
from lbagent.maps.layout import HOST_ORDER, LB_BACKEND_FLOWS, LB_RULES, RULES, RULES_REJECT, RULES_WEIGHTED, SERVICE_IDS
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.flow_rules import NO_RULES
from lbagent.model.service import SVC, Algorithm, ServiceName
from lbagent.targets.bpf.shadow import map_entries
from lbagent.targets.bpf.steps import FrontendChange

log = logging.getLogger(__name__)
_NS = 1_000_000_000
_WORD = 8


class FlowRulesKeeper(RuleCounts):
    """Owner of what the agent writes in lb_rules, lb_rules_of and lb_backend_flows."""

    def __init__(self, maps: LBMaps, tick: TickOf = tick_now) -> None:
        super().__init__(maps, tick)
        self._rows: dict[L3n4Addr, SVC] = {}  # frontends with rules
        self._numbers: dict[ServiceName, int] = {}
        self._names: dict[int, ServiceName] = {}
        self._next = 0

    def numbers(self) -> Collection[int]:
        """Return the numbers of the records in use."""
        return self._names

    def backends(self) -> set[int]:
        """Return the ids of the backends of frontends with rules."""
        return {backend.id for row in self._rows.values() for backend in row.selectable + row.unselectable}

    def proxied(self) -> dict[int, list[L3n4Addr]]:
        """Return the frontends of Services whose L7 proxy may have so many connections alone, by the number of their record."""
        found: dict[int, list[L3n4Addr]] = {}
        for row in self._rows.values():
            if row.l7_lb_proxy_port and row.flow_rules and row.flow_rules.max_flows and row.name in self._numbers:
                found.setdefault(self._numbers[row.name], []).append(row.frontend)
        return found

    # --- before a plan is applied ---

    def prepare(self, changes: Sequence[FrontendChange]) -> None:
        """Write what the programs need before the frontends of these changes lead there. Raises KernelError."""
        for change in changes:
            svc = change.svc
            if svc is None:
                self._forget(change.frontend)
            elif svc.id and (has_rules(svc) or self._number_of(svc.id)):
                self._prepare(change, svc)
        unused = self._numbers.keys() - {row.name for row in self._rows.values()}
        for name in unused:
            self._names.pop(self._numbers.pop(name))

    def _prepare(self, change: FrontendChange, svc: SVC) -> None:
        if not has_rules(svc):
            self._forget(svc.frontend)
            self._store_number(svc.id, 0)
            return
        if svc.is_restored:
            return
        self._rows[svc.frontend] = svc
        number = self._numbers.get(svc.name) or self._give_number(svc)
        if not number:
            log.error(
                "no more Services can have rules for their flows", extra={"service": str(svc.name), "max": RULES - 1}
            )
        self._store_number(svc.id, number)
        if number:  # record 0 stands for no rules
            self._store_rules(number, svc)
        self._store_backends(change, svc)

    def _forget(self, frontend: L3n4Addr) -> None:
        self._rows.pop(frontend, None)

    def _give_number(self, svc: SVC) -> int:
        """Return the number that the maps have for this frontend, or a new one; 0: there is none."""
        number = self._number_of(svc.id)
        if not number or number in self._names:
            number = self._free_number()
            if not number:
                return 0
            counts = self._counts(number)
            self._store(number, "base", -(counts.opened - counts.closed))
            self.fresh.add(number)
        self._numbers[svc.name], self._names[number] = number, svc.name
        return number

    def _free_number(self) -> int:
        if not self._next:  # numbers of an earlier agent come last: flows may have them
            with self._maps.window("lb_rules_of", 0, SERVICE_IDS * 2) as view:
                self._next = max(memoryview(bytes(view)).cast("H"))
        for _ in range(1, RULES):
            self._next = self._next % (RULES - 1) + 1
            if self._next not in self._names:
                return self._next
        return 0

    def _store_rules(self, number: int, svc: SVC) -> None:
        rules = svc.flow_rules or NO_RULES
        flags = RULES_REJECT if rules.reject else 0
        of_name = [row for row in self._rows.values() if row.name == svc.name]
        flags |= RULES_WEIGHTED if any(map(weights_differ, of_name)) else 0
        first = rules.max_flows.to_bytes(4, HOST_ORDER) + rules.max_flows_per_backend.to_bytes(4, HOST_ORDER)
        interval = _NS // rules.new_flow_rate if rules.new_flow_rate else 0
        slow_start_s = 0 if svc.algorithm is Algorithm.MAGLEV else rules.slow_start_s
        at = number * LB_RULES.size
        start = _ticks(slow_start_s).to_bytes(4, HOST_ORDER)
        if svc.l7_lb_proxy_port:  # the tick of the last count of its connections stays: proxy_connections.py
            with self._maps.window("lb_rules", at + 16, _WORD) as view:
                start = bytes(view[:4])
        third = start + flags.to_bytes(4, HOST_ORDER)
        words = ((at, first), (at + 8, interval.to_bytes(8, HOST_ORDER)), (at + 16, third))
        self._maps.store("lb_rules", words)

    def _store_backends(self, change: FrontendChange, svc: SVC) -> None:
        """Write the weights; of backends that were just added, among others that were there, also since when."""
        since = 0
        added: set[int] = set()
        if svc.flow_rules and svc.flow_rules.slow_start_s and change.old is not None:
            before = _selectable_ids(change.old)
            now = {backend.id for backend in svc.selectable}
            added = now - before if before & now else set()
            since = self._tick() or 1 if added else 0
        words = []
        for backend in svc.selectable:
            old = self._backend_word(backend.id)
            new = old[:4] + backend.weight.to_bytes(2, HOST_ORDER) + old[6:]
            if backend.id in added:
                new = new[:6] + since.to_bytes(2, HOST_ORDER)
            if new != old:
                words.append((backend.id * LB_BACKEND_FLOWS.size + _WORD, new))
        self._maps.store("lb_backend_flows", words)

    # --- what is counted, for tests and those who ask ---

    def live(self) -> Mapping[ServiceName, int]:
        """Return the live flows of each Service with rules, as the programs count them. Raises KernelError."""
        out = {}
        for name, number in self._numbers.items():
            counts = self._counts(number)
            out[name] = max(0, self._read(number, "base") + counts.opened - counts.closed)
        return out

    # --- words ---

    def _number_of(self, service: int) -> int:
        with self._maps.window("lb_rules_of", service // 4 * _WORD, _WORD) as view:
            return memoryview(bytes(view)).cast("H")[service % 4]

    def _store_number(self, service: int, number: int) -> None:
        at = service // 4 * _WORD
        with self._maps.window("lb_rules_of", at, _WORD) as view:
            word = bytearray(view)
        old = bytes(word)
        word[service % 4 * 2 : service % 4 * 2 + 2] = number.to_bytes(2, HOST_ORDER)
        if word != old:
            self._maps.store("lb_rules_of", [(at, bytes(word))])


def _ticks(seconds: int) -> int:
    """Return the ticks of a time, one at least unless it is 0."""
    return max(round(seconds * hz() / (1 << tick_shift(hz()))), int(seconds > 0))


def _selectable_ids(old: object) -> set[int]:
    if isinstance(old, SVC):
        return {backend.id for backend in old.selectable}
    slots = map_entries(old).slots  # type: ignore[arg-type]
    count = frontend_codec.selectable_count(slots[0]) if 0 in slots else 0
    return {frontend_codec.backend_id_of(value) for slot, value in slots.items() if 0 < slot <= count}
