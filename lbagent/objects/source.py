"""Source: an origin of objects. A folder of manifests, the operator, the Kubernetes API.

A source never reports a failed or empty list as "everything was deleted": the objects stay, `problems` has the reason, and
`trusted` is false until the next good list. While it is false, a restarted agent removes nothing that may belong to its objects
(targets/bpf/retention.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from lbagent.model.message import Message
from lbagent.objects.records import FIELD_OF_KIND, ObjectChange, ObjectSnapshot

OnChange = Callable[[Sequence[ObjectChange]], None]


class Source(Protocol):
    """One origin of objects. `origin.source` of each object is the name of its source.

    `synced` is set after the first full list, also if that failed or was empty. `trusted`: objects missing in the last list are
    really gone.
    """

    name: str
    synced: asyncio.Event

    @property
    def trusted(self) -> bool:
        """Whether the last list was good and not empty."""

    @property
    def distrust(self) -> Message | None:
        """Why it is not trusted: one of `problems`, or a message of its own; None if it is trusted."""

    @property
    def listed(self) -> bool:
        """Whether it gave a whole list since its start: objects of that list are current, also if missing ones are in doubt."""

    @property
    def remembered(self) -> bool:
        """Whether its objects are those stored by an earlier agent: the contents of the maps are at least as new."""

    @property
    def remedy(self) -> str:
        """The remedy for a source that is not trusted."""

    @property
    def held(self) -> int:
        """The number of objects missing in the last list, which are kept until an operator confirms their deletion."""

    def snapshot(self) -> ObjectSnapshot:
        """Return every object of this source now."""

    def problems(self) -> Sequence[Message]:
        """Return the current problems, in a stable order."""

    def resume(self) -> None:
        """Continue from an earlier agent: the maps serve the objects that it read. Called at most once, before `run`.

        A source that stores its objects over restarts gives these, untrusted, if its first list fails, so that served frontends
        have names. A source without a store, or whose list cannot fail, does nothing.
        """

    async def run(self, on_change: OnChange) -> None:
        """List, then watch until cancelled; call `on_change` from the event loop with each batch of changes.

        The first call after the list has every object; also called with an empty batch if only `problems` changed.
        """


class Missed(NamedTuple):
    """What a source has missed: `changes` lead from its objects to those of a new list, `places` are where they are.

    A place is a word of the source: a resource of the API, a file.
    """

    changes: Sequence[ObjectChange] = ()
    places: Sequence[str] = ()


@runtime_checkable
class RereadSource(Protocol):
    """A source whose origin can be listed a second time."""

    name: str

    async def find_missed(self) -> Missed:
        """List everything again, apply nothing, and return what the source lacks although it had time to get it.

        Raises TimedOut where the origin does not answer, or gives no whole list.
        """

    def list_again(self, places: Sequence[str]) -> None:
        """Have these places listed and followed again; what was known stays until then."""


def initial_changes(objects: ObjectSnapshot) -> list[ObjectChange]:
    """Return a snapshot as changes of an empty set."""
    return [ObjectChange(kind, key, None, obj) for kind in FIELD_OF_KIND for key, obj in objects.of_kind(kind).items()]
