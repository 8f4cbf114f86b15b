"""FakeNfTables: the tables of a kernel in memory. It reads the very messages that go to the kernel, and refuses what the kernel does."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from lbagent.errors import KernelError
from lbagent.kernel.netlink_attributes import attributes_of, read_attributes, read_text, read_u32
from lbagent.targets.nftables import nf_tables
from lbagent.targets.nftables.map_specs import Element, MapSpec
from lbagent.targets.nftables.nf_tables import Message, RuleRow, read_comment, read_element


class Table:
    """One table."""

    def __init__(self, comment: str) -> None:
        self.comment = comment
        self.sets: dict[str, bytes] = {}  # name -> what nft keeps of it
        self.elements: dict[str, dict[bytes, Element]] = {}
        self.hooks: dict[str, tuple[int, int] | None] = {}
        self.rules: dict[str, list[bytes]] = {}
        self.is_dormant = False


class FakeNfTables:
    """Tables by name; `fail_at`: number of the transaction that is refused, counted from the next one on as 1."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.number = 0
        self.fail_at = 0
        self.transactions: list[Sequence[Message]] = []

    def close(self) -> None:
        """Nothing is open."""

    def transact(self, messages: Sequence[Message]) -> None:
        """Put messages in force, all or none."""
        if not messages:
            return
        if self.fail_at:
            self.fail_at -= 1
            if not self.fail_at:
                raise KernelError("nftables transaction", errno.ENOMEM, messages[0].what)
        before = deepcopy(self.tables)
        for message in messages:
            try:
                self._apply(message.kind, attributes_of(message.body))
            except OSError as error:
                self.tables = before
                raise KernelError("nftables transaction", error.errno or 0, message.what) from None
        for table in self.tables.values():
            for chain in _named_chains(table):
                if chain not in table.rules:
                    self.tables = before
                    raise KernelError("nftables transaction", errno.EBUSY, f"chain {chain}")
        self.number += 1
        self.transactions.append(messages)

    def _apply(self, kind: int, parts: dict[int, bytes]) -> None:
        name = read_text(parts[1])
        if kind == nf_tables.NEW_TABLE:
            self.tables.setdefault(name, Table(read_comment(parts[6]))).is_dormant = False
            return
        table = self._table(name)
        if kind == nf_tables.DEL_TABLE:
            del self.tables[name]
        elif kind == nf_tables.NEW_SET:
            table.sets.setdefault(read_text(parts[2]), parts[13])
            table.elements.setdefault(read_text(parts[2]), {})
        elif kind in (nf_tables.NEW_CHAIN, nf_tables.DEL_CHAIN):
            self._chain(table, kind, read_text(parts[3]), parts)
        elif kind == nf_tables.NEW_RULE:
            table.rules[_known(table.rules, read_text(parts[2]))].append(parts[4])
        elif kind == nf_tables.DEL_RULE:
            table.rules[_known(table.rules, read_text(parts[2]))].clear()
        else:
            _elements(table, kind, _known(table.sets, read_text(parts[2])), parts[3])

    def _chain(self, table: Table, kind: int, name: str, parts: dict[int, bytes]) -> None:
        if kind == nf_tables.DEL_CHAIN:
            if table.rules[_known(table.rules, name)]:
                raise OSError(errno.EBUSY, "it has rules")
            del table.rules[name], table.hooks[name]
            return
        hook = attributes_of(parts[4]) if 4 in parts else {}
        found = (read_u32(hook[1]), int.from_bytes(hook[2], "big", signed=True)) if hook else None
        if table.hooks.setdefault(name, found) != found:
            raise OSError(errno.EEXIST, "it has another hook")
        table.rules.setdefault(name, [])

    def _table(self, name: str) -> Table:
        return self.tables[_known(self.tables, name)]

    # --- what is there ---

    def comment(self, table: str) -> str | None:
        """Return the comment of a table."""
        return self.tables[table].comment if table in self.tables else None

    def generation(self) -> int:
        """Return the number of the last transaction."""
        return self.number

    def is_dormant(self, table: str) -> bool:
        """Return whether the chains of a table have no effect."""
        return self._table(table).is_dormant

    def elements(self, table: str, spec: MapSpec) -> dict[bytes, Element]:
        """Return the elements of a map."""
        found = self._table(table).elements
        return dict(found[_known(found, spec.name)])

    def rules(self, table: str) -> list[RuleRow]:
        """Return the rules."""
        return [RuleRow(chain, rule) for chain, rules in self._table(table).rules.items() for rule in rules]

    def hook(self, table: str, chain: str) -> tuple[int, int] | None:
        """Return the hook and the priority of a chain."""
        return self._table(table).hooks.get(chain)

    def set_data(self, table: str, name: str) -> bytes | None:
        """Return what nft keeps of a set."""
        return self._table(table).sets.get(name)


def _known(names: Any, name: str) -> str:
    if name not in names:
        raise FileNotFoundError(errno.ENOENT, "no such object", name)
    return name


def _elements(table: Table, kind: int, name: str, body: bytes) -> None:
    content = table.elements[name]
    for _, item in read_attributes(body):
        key, element = read_element(item)
        if kind == nf_tables.DEL_ELEMENT:
            del content[key if key in content else _known((), name)]
        elif key in content:
            if content[key].value != element.value:
                raise FileExistsError(errno.EEXIST, "another value")
        else:
            if isinstance(element.value, str) and " " in element.value:
                _known(table.rules, element.value.partition(" ")[2])
            content[key] = element


def _named_chains(table: Table) -> set[str]:
    """Return the chains that verdicts of maps lead to."""
    values = (element.value for content in table.elements.values() for element in content.values())
    return {value.partition(" ")[2] for value in values if isinstance(value, str) and " " in value}
