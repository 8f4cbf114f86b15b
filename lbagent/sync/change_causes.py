"""What caused each State: the objects that changed, in a line for an operator. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from lbagent.objects.records import OPERATOR, FailedChecks, ObjectChange, Origin, StateOverride

MAX_NAMED = 4  # objects that a line names; of the others it has the number
MAX_STATES = 1000  # States whose causes are kept until a data plane has them in force
MAX_CHARACTERS = 1000


class ChangeCauses:
    """The causes of States by generation of the loop, until they are in force."""

    def __init__(self) -> None:
        self._causes: deque[tuple[int, str]] = deque(maxlen=MAX_STATES)

    def add(self, generation: int, cause: str) -> None:
        """Keep the cause of a State."""
        self._causes.append((generation, cause))

    def between(self, last: int, now: int) -> str:
        """Return the causes of the States after `last`, `now` included; '' without one."""
        found = []
        for generation, cause in reversed(self._causes):
            if generation <= last:
                break
            if generation <= now:
                found.append(cause)
        return cut("; ".join(dict.fromkeys(reversed(found))))


def cause_of(changes: Sequence[ObjectChange]) -> str:
    """Return what changed: `FILE:LINE Kind NAMESPACE/NAME`, `Kind NAMESPACE/NAME`, `set-state BACKEND STATE`; '' for nothing.

    A health check is `health check of SERVICE: BACKEND down`.
    """
    texts, file = [], ""
    for change in islice(changes, MAX_NAMED):
        origin = _origin(change)
        text = _operation(change) if origin.source == OPERATOR else _object(change)
        is_new_file = origin.file and origin.file != file
        texts.append(f"{origin.place} {text}" if is_new_file else text)
        file = origin.file
    more = len(changes) - len(texts)
    return cut(", ".join(texts) + (f" and {more} more" if more > 0 else ""))


def cut(text: str) -> str:
    """Return a text of at most MAX_CHARACTERS."""
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def _origin(change: ObjectChange) -> Origin:
    obj = change.new if change.new is not None else change.old
    origin = getattr(obj, "origin", None)
    return origin if isinstance(origin, Origin) else Origin()


def _checked(change: ObjectChange) -> str:
    """Return which backends of a Service go down or up by their health check."""
    old, new = (each.backends if isinstance(each, FailedChecks) else frozenset() for each in (change.old, change.new))
    parts = []
    for word, backends in (("down", new - old), ("up", old - new)):
        names = sorted(each.with_protocol() for each in backends)
        more = len(names) - MAX_NAMED
        if names:
            parts.append(f"{', '.join(names[:MAX_NAMED])}{f' and {more} more' if more > 0 else ''} {word}")
    return f"health check of {change.key}: {'; '.join(parts)}"


def _object(change: ObjectChange) -> str:
    if change.kind == "FailedChecks":
        return _checked(change)
    return f"{change.kind} {change.key}" + (" deleted" if change.new is None else "")


def _operation(change: ObjectChange) -> str:
    """Return the command of the operator that makes this change."""
    new = change.new
    if isinstance(new, StateOverride):
        return f"set-state {new.subject} {new.state.text}"
    return f"clear-state {change.key}"
