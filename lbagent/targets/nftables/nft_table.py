"""The table in the kernel: reading it, making it what a RuleSet wants, and comparing the two.

Blocks. A table of our name without our comment is another program's: it is never changed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from lbagent.errors import KernelError, Refused
from lbagent.model.family import Family
from lbagent.render.renderer_types import Difference
from lbagent.targets.nftables import nf_tables
from lbagent.targets.nftables.chains import TableSettings, Way, base_chains
from lbagent.targets.nftables.map_specs import MAPS, MARKER, Element, MapSpec
from lbagent.targets.nftables.nf_tables import DEL_ELEMENT, NEW_ELEMENT, Message, NfTables, RuleRow
from lbagent.targets.nftables.rule_set import Elements, RuleSetDiff
from lbagent.targets.nftables.statements import (
    Chain,
    dnat,
    frontend,
    hashed_slot,
    is_translated,
    limit_over,
    masquerade,
    random_slot,
    reset,
    rule,
    source,
)

PROBE = "lbagent-probe"  # the table that is made and deleted in one transaction
_SAMPLE = Way(Family.IPV4, 2, "flow", sticky=True, check="allow")


class NotOurs(Refused):
    """The table has our name and not our comment."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"table inet {table} is not lbagent's: it has another comment; nothing is changed. Remove it"
            f" (nft delete table inet {table}), or name another one: --renderer nftables=table=NAME"
        )


class NftTable:
    """One table of the family inet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._kernel = NfTables()
        self.transactions = 0  # that this object has sent, each with at least one message
        self._written: dict[str, list[bytes]] = {}  # the rules of each chain, as they were after its last write
        self._unread: set[str] = set()  # chains that were written since
        self._is_unread = True  # all of them

    def close(self) -> None:
        """Close the socket; the table stays."""
        self._kernel.close()

    def exists(self) -> bool:
        """Return whether the table is there. Raises NotOurs, OSError."""
        comment = self._kernel.comment(self.name)
        if comment is not None and not nf_tables.is_our_comment(comment):
            raise NotOurs(self.name)
        return comment is not None

    def read(self) -> Elements:
        """Return the elements that are there; those of a table that is not, or has other maps, are none. Raises OSError."""
        found: Elements = {name: {} for name in MAPS}
        for name, spec in MAPS.items():
            if not spec.dynamic:
                with suppress(FileNotFoundError):
                    found[name] = self._kernel.elements(self.name, spec)
        return found

    def generation(self) -> int:
        """Return the number of the last change of any table in this network namespace. Raises OSError."""
        return self._kernel.generation()

    def count(self, spec: MapSpec) -> int:
        """Return how many elements a map has. Raises OSError."""
        return len(self._kernel.elements(self.name, spec))

    def is_usable(self, base: Mapping[str, Chain]) -> bool:
        """Return whether the sets and the chains with a hook are as this version makes them. Raises OSError."""
        if self._kernel.comment(self.name) != MARKER:
            return False
        if any(self._kernel.set_data(self.name, spec.name) != nf_tables.user_data(spec) for spec in MAPS.values()):
            return False
        return all(
            self._kernel.hook(self.name, name) == nf_tables.hook_of(chain) for name, chain in base.items() if chain.hook
        )

    # --- writing ---

    def create(
        self, chains: Mapping[str, Chain], elements: Mapping[str, Mapping[bytes, Element]], *, fresh: bool
    ) -> None:
        """Make the table with its maps, chains and rules, in one transaction; `fresh`: in place of the one that is there.

        Rules of chains that are there already are replaced. Raises KernelError.
        """
        table = self.name
        batch = [nf_tables.new_table(table, MARKER)]
        if fresh:
            batch += [nf_tables.delete_table(table), nf_tables.new_table(table, MARKER)]
        batch += [nf_tables.new_set(table, spec, number) for number, spec in enumerate(MAPS.values(), 1)]
        batch += self._chain_messages(chains)
        for name, content in elements.items():
            batch += nf_tables.elements(NEW_ELEMENT, table, MAPS[name], list(content.items()))
        self._is_unread = True
        self._transact(batch)

    def _transact(self, batch: list[Message]) -> None:
        if batch:
            self._kernel.transact(batch)
            self.transactions += 1

    def _chain_messages(self, chains: Mapping[str, Chain]) -> Iterator[Message]:
        for name, chain in chains.items():
            yield nf_tables.new_chain(self.name, name, chain)
        for name, chain in chains.items():
            yield nf_tables.delete_rules(self.name, name)
            yield from nf_tables.new_rules(self.name, name, chain)

    def write(self, change: RuleSetDiff) -> int:
        """Put a difference in force; return how many transactions that took. Raises KernelError: what is before it stays."""
        self._unread.update(change.new_chains, change.gone_chains)
        last = change.last_slots()
        batch = list(self._chain_messages(change.new_chains))
        for name, content in change.deleted.items():
            gone = last.get(name, {})
            batch += self._elements(DEL_ELEMENT, name, {key: each for key, each in content.items() if key not in gone})
        for name, content in change.added.items():
            batch += self._elements(NEW_ELEMENT, name, content)
        self._transact(batch)
        after = [message for name, content in last.items() for message in self._elements(DEL_ELEMENT, name, content)]
        # A chain goes with its rules, before the chains that they lead to.
        for name in change.gone_chains:
            after += [nf_tables.delete_rules(self.name, name), nf_tables.delete_chain(self.name, name)]
        self._transact(after)
        return bool(batch) + bool(after)

    def _elements(self, kind: int, name: str, content: Mapping[bytes, Element]) -> Iterator[Message]:
        return nf_tables.elements(kind, self.name, MAPS[name], list(content.items()))

    def remember(self) -> None:
        """Take the rules of the chains that were written since the last call as the wanted ones. Raises OSError.

        Other chains may have been changed by another program meanwhile: their rules stay the wanted ones.
        """
        if not (self._is_unread or self._unread):
            return
        now = _by_chain(self._kernel.rules(self.name))
        if self._is_unread:
            self._written = now
        for name in self._unread:
            if name in now:
                self._written[name] = now[name]
            else:
                self._written.pop(name, None)
        self._unread, self._is_unread = set(), False

    def other_chains(self, chains: Mapping[str, Chain]) -> list[str]:
        """Return the chains beside these, each before those that it leads to. Raises OSError."""
        names = dict.fromkeys(row.chain for row in self._kernel.rules(self.name))
        return sorted((name for name in names if name not in chains), key=lambda name: -name.count("-"))

    def has_chain(self, name: str) -> bool:
        """Return whether a chain has a rule. Raises OSError."""
        return any(row.chain == name for row in self._kernel.rules(self.name))

    def other_hooked_chains(self, chains: Mapping[str, Chain]) -> list[str]:
        """Return those of them that have a hook. Others get a packet only from an element, which is compared. Raises OSError."""
        return [name for name in self.other_chains(chains) if self._kernel.hook(self.name, name) is not None]

    def missing_chains(self, chains: Mapping[str, Chain]) -> list[str]:
        """Return the chains with rules of which the table has none. Raises OSError."""
        there = {row.chain for row in self._kernel.rules(self.name)}
        return sorted(name for name, chain in chains.items() if chain.rules and name not in there)

    def faults(self, base: Mapping[str, Chain]) -> list[Difference]:
        """Return why the chains with a hook do not get the packets that they must. Raises OSError."""
        found = []
        if self._kernel.is_dormant(self.name):
            found.append(Difference("differs", f"table inet {self.name} is dormant: its chains have no effect"))
        for name, chain in base.items():
            there = self._kernel.hook(self.name, name) if chain.hook else None
            if there is not None and there != nf_tables.hook_of(chain):
                found.append(Difference("differs", f"chain {name} has another hook or priority"))
        return found

    def forget_clients(self, is_stale: Callable[[bytes, bytes], bool]) -> int:
        """Delete the clients that affinity leads from a frontend to a backend, both stale; return how many. Raises OSError.

        The arguments of `is_stale` are keys and values of maps.
        """
        count = 0
        for spec in (spec for spec in MAPS.values() if spec.dynamic):
            width = spec.family.address_bytes
            for key, element in self._kernel.elements(self.name, spec).items():
                if isinstance(element.value, bytes) and is_stale(key[width:], element.value):
                    with suppress(KernelError):  # it has expired
                        self._transact(list(nf_tables.elements(DEL_ELEMENT, self.name, spec, [(key, element)])))
                        count += 1
        return count

    def changed_chains(self) -> list[str]:
        """Return the chains whose rules are not as they were written. Raises OSError."""
        if self._is_unread:
            return []
        now, before = _by_chain(self._kernel.rules(self.name)), self._written
        return sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))

    def retire(self) -> None:
        """Leave new connections to other programs; those that the table translates stay translated. Raises KernelError."""
        self._transact([nf_tables.delete_rules(self.name, chain) for chain in ("prerouting", "output")])

    def remove(self) -> bool:
        """Delete the table; return whether it was there. Raises NotOurs, KernelError."""
        if not self.exists():
            return False
        self._transact([nf_tables.delete_table(self.name)])
        return True


def _by_chain(rows: list[RuleRow]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for row in rows:
        found.setdefault(row.chain, []).append(row.expressions)
    return found


def unavailable_reason() -> str:
    """Return why this process cannot use nftables here; '' when it can. A table is made and deleted in one transaction."""
    try:
        kernel = NfTables()
    except OSError as error:
        return f"the kernel has no netfilter netlink: {error.strerror}"
    try:
        kernel.comment(PROBE)
        _probe(kernel, {**base_chains(TableSettings(table=PROBE)), **dict(_SAMPLE.chains())})
    except (KernelError, OSError) as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            return "this process may not change nftables: it needs CAP_NET_ADMIN"
        return _missing_module(kernel) or f"the kernel refuses the rules: {error}"
    finally:
        kernel.close()
    return ""


def _probe(kernel: NfTables, chains: Mapping[str, Chain]) -> None:
    batch = [nf_tables.new_table(PROBE, MARKER)]
    batch += [nf_tables.new_set(PROBE, spec, number) for number, spec in enumerate(MAPS.values(), 1)]
    batch += [nf_tables.new_chain(PROBE, name, chain) for name, chain in chains.items()]
    for name, chain in chains.items():
        batch += nf_tables.new_rules(PROBE, name, chain)
    kernel.transact([*batch, nf_tables.delete_table(PROBE)])


def _missing_module(kernel: NfTables) -> str:
    """Return which part of nftables the kernel has not; '' when that is not the reason."""
    slot = (*frontend(Family.IPV4), random_slot(2, 0))
    hashed = (*frontend(Family.IPV4), hashed_slot((source(Family.IPV4),), 2, 1, 0))
    parts = {
        "nft_chain_nat": Chain((), "postrouting", 100),
        "nft_reject_inet": Chain((rule(reset()),), "prerouting", -100),
        "nft_limit": Chain((rule(limit_over(1)),), "prerouting", -100),
        "nft_ct": Chain((rule(is_translated()),), "prerouting", -100),
        "nft_masq": Chain((rule(masquerade()),), "postrouting", 100),
        "nft_numgen or nft_nat": Chain((rule(dnat(Family.IPV4, slot, "backends4")),), "prerouting", -100),
        "nft_hash": Chain((rule(dnat(Family.IPV4, hashed, "backends4")),), "prerouting", -100),
    }
    for module, chain in parts.items():
        try:
            _probe(kernel, {"probe": chain})
        except KernelError:
            return f"the kernel has no {module}"
    return ""
