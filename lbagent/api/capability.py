"""The rows of which the API, its client, `/metrics` and the tables of the documents are made.

A capability is a file of capabilities/: its routes, the words of its lists, its metrics. The agent binds it to the part that has
the values (agent/app.py); a capability that is off is bound to none.

Standard library only, as the command line has 150 ms to start. For the same reason a file of capabilities/ imports the modules
of the agent for types alone, and inside the functions that need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from lbagent.observe.metric import Metric

CONFIGZ = "/configz"  # the settings in force, by key: at the socket and at the port of the metrics
Part = TypeVar("Part")
Item_contra = TypeVar("Item_contra", contravariant=True)
Row = dict[str, Any]  # of the JSON
NUMBER, TEXT, BOOLEAN, TEXTS, ROWS, OBJECT = (
    "number",
    "text",
    "true, false",
    "list of texts",
    "list of objects",
    "object",
)


class Field(Generic[Item_contra]):
    """One word of a list: a key of the JSON, a column of the table, or both."""

    def __init__(
        self,
        key: str,
        kind: str,
        meaning: str,
        value: Callable[[Item_contra], object] | None,
        title: str = "",
        cell: Callable[[Row], object] | None = None,
        *,
        wide: bool = False,
        shown_with: str = "",
        cut: bool = False,
        optional: bool = False,
    ) -> None:
        """`value` makes the value in the JSON, `cell` the text in the table where that is another one."""
        self.key, self.kind, self.meaning, self.value = key, kind, meaning, value  # key '': only a column
        self.title, self.cell = title, cell  # title of the column; '': it has none
        self.wide = wide  # a column of -o wide
        self.shown_with = shown_with  # of -o wide, and of a table with a row that has this key
        self.cut = cut  # its cells may be cut
        self.optional = optional  # left out of the JSON where it is 0, empty or not known

    def replaced(self, **changes: Any) -> Field[Item_contra]:
        """Return the same word with these attributes."""
        return Field(**vars(self) | changes)

    def cell_of(self, row: Row) -> object:
        """Return what the table shows."""
        return self.cell(row) if self.cell else row.get(self.key)

    def is_wide(self, rows: Iterable[Row]) -> bool:
        """Return whether the column is one of -o wide alone, in a table of these rows."""
        return self.wide or (self.shown_with != "" and not any(row.get(self.shown_with) for row in rows))


class ListedFields(Generic[Item_contra]):
    """A list: its words in the order of the JSON (optional ones are last there), and the titles of its first columns in theirs."""

    def __init__(self, record: str, fields: Sequence[Field[Item_contra]], columns: Sequence[str] = ()) -> None:
        self.record = record  # its name in routes and docs/api.md
        self.fields = fields
        self.columns = columns

    @cached_property
    def row(self) -> Callable[[Item_contra], Row]:
        """A function that returns the JSON of an item.

        There are 100,000 of them in a large cluster: its code is written here, as dataclasses write theirs, without a loop over the
        fields.
        """
        names = {f"value_{number}": each.value for number, each in enumerate(self.fields) if each.value}
        calls = {each.key: f"value_{number}(item)" for number, each in enumerate(self.fields) if each.value}
        optional = {each.key for each in self.fields if each.optional}
        always = ", ".join(f"{key!r}: {call}" for key, call in calls.items() if key not in optional)
        lines = ["def row(item):", f"    out = {{{always}}}"]
        lines += [f"    if value := {calls[key]}:\n        out[{key!r}] = value" for key in calls if key in optional]
        namespace: dict[str, Any] = dict(names)
        exec("\n".join([*lines, "    return out"]), namespace)  # noqa: S102 - of these rows alone
        row: Callable[[Item_contra], Row] = namespace["row"]
        return row

    @property
    def shown(self) -> list[Field[Item_contra]]:
        """The words that have a column, in the order of the columns."""
        place = {title: number for number, title in enumerate(self.columns)}
        return sorted((each for each in self.fields if each.title), key=lambda each: place.get(each.title, len(place)))


class Route(Generic[Part]):
    """One route. `answer` gets the part, then the texts of the query in this order, or the record of the body.

    It returns a record, an iterable of records, of items of a ListedFields or of texts, or an awaitable of these.
    """

    def __init__(
        self,
        name: str,
        method: str,
        path: str,
        record: str | ListedFields[Any],
        meaning: str,
        answer: Callable[..., Any],
        *,
        is_list: bool = False,
        query: tuple[tuple[str, str], ...] = (),
        body: str = "",
        no_store: bool = False,
        is_stream: bool = False,
    ) -> None:
        """`record`: MODULE:NAME, a list, or TEXT. `body`: MODULE:NAME. `query`: keys, each with the value of one left out.

        `is_stream`: the answer is an asynchronous iterator of events in bytes. `no_store`: no cache may keep it.
        """
        self.name = name  # of AgentClient's method
        self.method, self.path = method, path
        self.record = record
        self.meaning = meaning  # what it does and answers, for docs/api.md
        self.answer = answer
        self.many = is_list or isinstance(record, ListedFields)
        self.is_text = record == TEXT
        self.query, self.body = query, body
        self.no_store, self.is_stream = no_store, is_stream

    @property
    def record_name(self) -> str:
        """The name of the record, as docs/api.md has it."""
        return self.record.record if isinstance(self.record, ListedFields) else self.record.rpartition(":")[2]


class Capability(Generic[Part]):
    """The rows of one capability."""

    def __init__(
        self,
        routes: Sequence[Route[Part]] = (),
        metrics: Sequence[Metric[Any]] = (),
        subject: Callable[[Part], Any] = lambda part: part,
        off: str = "",
    ) -> None:
        """`subject` returns what the metrics read, once for each scrape."""
        self.routes, self.metrics, self.subject = routes, metrics, subject
        self.off = off  # the answer of an agent without it (404): why, and what to do


Bound = tuple[Capability[Any], Any]  # a capability of this agent, with the part that has its values


def bind(capability: Capability[Part], part: Part) -> Bound:
    """Return the capability with its part, whose type it names."""
    return capability, part
