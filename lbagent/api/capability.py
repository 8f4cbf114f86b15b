"""The rows of which the API, its client, `/metrics` and the tables of the documents are made.

A capability is a file of capabilities/: its routes, the words of its lists, its metrics. The agent binds it to the part that has
the values (agent/app.py); a capability that is off is bound to none.

Standard library only, as the command line has 150 ms to start. For the same reason a file of capabilities/ imports the modules
of the agent for types alone, and inside the functions that need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from lbagent.observe.metric import Metric

Part = TypeVar("Part")
Item = TypeVar("Item")
Row = dict[str, Any]  # of the JSON
NUMBER, TEXT, BOOLEAN, TEXTS, ROWS, OBJECT = (
    "number",
    "text",
    "true, false",
    "list of texts",
    "list of objects",
    "object",
)


class Field(NamedTuple, Generic[Item]):
    """One word of a list: a key of the JSON, a column of the table, or both.

    `value` makes the value in the JSON, `cell` the text in the table where that is another one.
    """

    key: str  # '': only a column
    kind: str
    meaning: str
    value: Callable[[Item], object] | None
    title: str = ""  # of the column; '': it has none
    cell: Callable[[Row], object] | None = None
    wide: bool = False  # a column of -o wide
    shown_with: str = ""  # of -o wide, and of a table with a row that has this key
    cut: bool = False  # its cells may be cut
    optional: bool = False  # left out of the JSON where it is 0, empty or not known

    def cell_of(self, row: Row) -> object:
        """Return what the table shows."""
        return self.cell(row) if self.cell else row.get(self.key)

    def is_wide(self, rows: Iterable[Row]) -> bool:
        """Return whether the column is one of -o wide alone, in a table of these rows."""
        return self.wide or (self.shown_with != "" and not any(row.get(self.shown_with) for row in rows))


class ListedFields(Generic[Item]):
    """A list: its words in the order of the JSON (optional ones are last there), and the titles of its first columns in theirs."""

    def __init__(self, record: str, fields: Sequence[Field[Item]], columns: Sequence[str] = ()) -> None:
        self.record = record  # its name in routes and docs/api.md
        self.fields = fields
        self.columns = columns
        self._always = [(each.key, each.value) for each in fields if each.value and not each.optional]
        self._optional = [(each.key, each.value) for each in fields if each.value and each.optional]

    def row(self, item: Item) -> Row:
        """Return the JSON of an item. There are 100,000 of them in a large cluster."""
        out: Row = {key: value(item) for key, value in self._always}
        for key, make in self._optional:
            if value := make(item):
                out[key] = value
        return out

    @property
    def shown(self) -> list[Field[Item]]:
        """The words that have a column, in the order of the columns."""
        place = {title: number for number, title in enumerate(self.columns)}
        return sorted((each for each in self.fields if each.title), key=lambda each: place.get(each.title, len(place)))


class Route(NamedTuple, Generic[Part]):
    """One route. `answer` gets the part, then the texts of the query in this order, or the record of the body.

    It returns a record, an iterable of records, of items of a ListedFields or of texts, or an awaitable of these.
    """

    name: str  # of AgentClient's method
    method: str
    path: str
    record: str | ListedFields[Any]  # MODULE:NAME of a record, a list, or TEXT
    meaning: str  # what it does and answers, for docs/api.md
    answer: Callable[..., Any]
    is_list: bool = False  # of such records; every ListedFields is one
    query: tuple[tuple[str, str], ...] = ()  # keys, all optional, and the value of one that is left out
    body: str = ""  # MODULE:NAME of a record

    @property
    def many(self) -> bool:
        """Whether the answer is a list."""
        return self.is_list or isinstance(self.record, ListedFields)

    @property
    def is_text(self) -> bool:
        """Whether the answer is no JSON."""
        return self.record == TEXT

    @property
    def record_name(self) -> str:
        """The name of the record, as docs/api.md has it."""
        return self.record.record if isinstance(self.record, ListedFields) else self.record.rpartition(":")[2]


class Capability(NamedTuple, Generic[Part]):
    """The rows of one capability. `subject` returns what the metrics read, once for each scrape."""

    routes: Sequence[Route[Part]] = ()
    metrics: Sequence[Metric[Any]] = ()
    subject: Callable[[Part], Any] = lambda part: part
    off: str = ""  # the answer of an agent without it (404): why, and what to do


class Bound(NamedTuple):
    """A capability of this agent, with the part that has its values."""

    capability: Capability[Any]
    part: Any


def bind(capability: Capability[Part], part: Part) -> Bound:
    """Return the capability with its part, whose type it names."""
    return Bound(capability, part)
