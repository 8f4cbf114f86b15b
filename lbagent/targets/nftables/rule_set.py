"""RuleSet: all elements and chains of the table, Service by Service, and the difference of two. Pure.

A RuleSetDiff is applied in this order, which no packet can tell from one step: new chains, then elements that change or come
(a verdict and the slots it needs together), then slots that nothing names any more, then chains that nothing names any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from lbagent.model.family import Family
from lbagent.model.service import SVC, ServiceName
from lbagent.targets.nftables.chains import Need, TableSettings, base_chains
from lbagent.targets.nftables.map_specs import MAPS, PROTOCOLS, Element, device_key
from lbagent.targets.nftables.service_elements import NO_RULES, IsLocal, ServiceRules, service_rules
from lbagent.targets.nftables.statements import Chain

Elements = dict[str, dict[bytes, Element]]  # by map, by key
OF_NODE = ("pod_devices", "nodes4", "nodes6")  # sets of no Service
CHUNK_ELEMENTS = 2000  # of a transaction of a large load


class RuleSetDiff:
    """What leads from one rule set to another: elements to delete (with their old value) and to add; chains by name."""

    def __init__(self) -> None:
        self.added: Elements = {}
        self.deleted: Elements = {}
        self.new_chains: dict[str, Chain] = {}
        self.gone_chains: list[str] = []  # each before those that it leads to

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.added or self.deleted or self.new_chains or self.gone_chains)

    def __len__(self) -> int:
        """Return how many elements are written."""
        return sum(map(len, self.added.values())) + sum(map(len, self.deleted.values()))

    def change(self, name: str, key: bytes, old: Element | None, new: Element | None) -> None:
        """Add a change of one element."""
        if old == new:
            return
        if old is not None:
            self.deleted.setdefault(name, {})[key] = old
        if new is not None:
            self.added.setdefault(name, {})[key] = new

    def merge(self, later: RuleSetDiff) -> None:
        """Add what comes after it: another Service's elements, and what both share."""
        for name, elements in later.deleted.items():
            for key, old in elements.items():
                if self.added.get(name, {}).pop(key, None) is None:
                    self.deleted.setdefault(name, {})[key] = old
                elif name in self.added and not self.added[name]:
                    del self.added[name]
        for name, elements in later.added.items():
            for key, new in elements.items():
                if self.deleted.get(name, {}).get(key) == new:
                    del self.deleted[name][key]
                    if not self.deleted[name]:
                        del self.deleted[name]
                else:
                    self.added.setdefault(name, {})[key] = new
        back = [chain for chain in self.gone_chains if chain in later.new_chains]
        self.new_chains |= {name: chain for name, chain in later.new_chains.items() if name not in back}
        self.gone_chains = [chain for chain in self.gone_chains if chain not in back]
        for chain in later.gone_chains:
            if self.new_chains.pop(chain, None) is None:
                self.gone_chains.append(chain)

    def last_slots(self) -> Elements:
        """Return the slots that go and nothing names any more: they are deleted in a transaction of their own."""
        found: Elements = {}
        for name, elements in self.deleted.items():
            if MAPS[name].has_slot:
                added = self.added.get(name, {})
                gone = {key: element for key, element in elements.items() if key not in added}
                if gone:
                    found[name] = gone
        return found


class RuleSet:
    """The wanted rule set. `update` and `set_node` change it, and return the RuleSetDiff."""

    def __init__(self, settings: TableSettings, is_local: IsLocal) -> None:
        self.settings = settings
        self.is_local = is_local
        self.services: dict[ServiceName, ServiceRules] = {}
        self.base = base_chains(settings)
        self._needs: Counter[Need] = Counter()
        self._chains: Counter[str] = Counter()  # by how many needs have it
        self._local: Counter[bytes] = Counter()
        self._node: Elements = {name: {} for name in OF_NODE}

    # --- changes ---

    def update(self, name: ServiceName, rows: Iterable[SVC]) -> RuleSetDiff:
        """Take the rows of a Service, none where it is gone."""
        old = self.services.pop(name, NO_RULES)
        families = self.settings.families
        mine = [row for row in rows if row.frontend.family in families]
        new = service_rules(mine, self.is_local, as_text=self.settings.as_text)
        if new.elements or new.unsupported:
            self.services[name] = new
        out = RuleSetDiff()
        for (spec, key), element in old.elements.items():
            if (spec, key) not in new.elements:
                out.change(spec, key, element, None)
        for (spec, key), element in new.elements.items():
            out.change(spec, key, old.elements.get((spec, key)), element)
        self._count_local(out, old.local, new.local)
        for need in sorted(new.needs - old.needs, key=_name):
            self._add_need(out, need)
        for need in sorted(old.needs - new.needs, key=_name):
            self._drop_need(out, need)
        return out

    def _add_need(self, out: RuleSetDiff, need: Need) -> None:
        self._needs[need] += 1
        if self._needs[need] > 1:
            return
        for chain, content in need.chains():
            self._chains[chain] += 1
            if self._chains[chain] == 1:
                out.new_chains[chain] = content

    def _drop_need(self, out: RuleSetDiff, need: Need) -> None:
        self._needs[need] -= 1
        if self._needs[need]:
            return
        del self._needs[need]
        for chain, _ in reversed(list(need.chains())):
            self._chains[chain] -= 1
            if not self._chains[chain]:
                del self._chains[chain]
                if out.new_chains.pop(chain, None) is None:
                    out.gone_chains.append(chain)

    def _count_local(self, out: RuleSetDiff, old: frozenset[bytes], new: frozenset[bytes]) -> None:
        for address in new - old:
            self._local[address] += 1
            if self._local[address] == 1:
                for spec, key in _local_keys(address):
                    out.change(spec, key, None, Element())
        for address in old - new:
            self._local[address] -= 1
            if not self._local[address]:
                del self._local[address]
                for spec, key in _local_keys(address):
                    out.change(spec, key, Element(), None)

    def set_node(self, devices: Iterable[str], nodes: Iterable[bytes] = ()) -> RuleSetDiff:
        """Take the devices of pods whose pattern nft cannot match, and the addresses of nodes."""
        new: Elements = {name: {} for name in OF_NODE}
        new["pod_devices"] = {device_key(name): Element() for name in devices}
        for address in nodes:
            if (family := Family.of(address)) in self.settings.families:
                new[f"nodes{family.digit}"][address] = Element()
        out = RuleSetDiff()
        for name, elements in new.items():
            known = self._node[name]
            for key in known.keys() | elements.keys():
                out.change(name, key, known.get(key), elements.get(key))
        self._node = new
        return out

    # --- what it is ---

    def elements(self) -> Elements:
        """Return all elements, by map."""
        found: Elements = {name: {} for name in MAPS}
        found["protocols"] |= PROTOCOLS
        for name, elements in self._node.items():
            found[name] |= elements
        for rules in self.services.values():
            for (name, key), element in rules.elements.items():
                found[name][key] = element
        for address in self._local:
            for name, key in _local_keys(address):
                found[name][key] = Element()
        return found

    def chains(self) -> dict[str, Chain]:
        """Return all chains, each after those that it leads to."""
        needed: dict[str, Chain] = {}
        for need in sorted(self._needs, key=_name):
            needed |= dict(need.chains())
        return {**self.base, **needed}

    def unsupported(self) -> Iterator[tuple[ServiceName, str]]:
        """Yield what of a Service is not served."""
        for name, rules in self.services.items():
            for reason in rules.unsupported:
                yield name, reason


def _name(need: Need) -> str:
    return need.name


def _local_keys(address: bytes) -> Iterator[tuple[str, bytes]]:
    digit = "4" if len(address) == 4 else "6"
    yield f"local{digit}", address
    yield f"hairpin{digit}", address + address


def compare(old: Mapping[str, Mapping[bytes, Element]], new: Mapping[str, Mapping[bytes, Element]]) -> RuleSetDiff:
    """Return what makes one set of elements of the other; a dynamic map is left to the packets."""
    out = RuleSetDiff()
    for name, spec in MAPS.items():
        if spec.dynamic:
            continue
        before, after = old.get(name, {}), new.get(name, {})
        for key, element in before.items():
            if key not in after:
                out.change(name, key, element, None)
        for key, element in after.items():
            if (known := before.get(key)) != element:
                out.change(name, key, known, element)
    return out


def apply(elements: Mapping[str, Mapping[bytes, Element]], change: RuleSetDiff) -> Elements:
    """Return the elements after a RuleSetDiff."""
    out = {name: dict(content) for name, content in elements.items()}
    for name, content in change.deleted.items():
        for key in content:
            del out[name][key]
    for name, content in change.added.items():
        out.setdefault(name, {}).update(content)
    return out


def in_chunks(changes: Iterable[RuleSetDiff], most: int = CHUNK_ELEMENTS) -> Iterator[RuleSetDiff]:
    """Yield differences of Services as transactions of some `most` elements; none is cut."""
    chunk = RuleSetDiff()
    for change in changes:
        chunk.merge(change)
        if len(chunk) >= most:
            yield chunk
            chunk = RuleSetDiff()
    if chunk:
        yield chunk


def batches(content: Mapping[bytes, Element], most: int) -> Iterator[list[tuple[bytes, Element]]]:
    """Yield the elements, some at a time."""
    iterator = iter(content.items())
    while found := list(islice(iterator, most)):
        yield found
