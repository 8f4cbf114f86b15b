"""Source: where objects come from. A folder of manifests, the operator, the Kubernetes API.

A source never reports a list that failed or is empty as "everything was deleted": what was there stays, `problems` says so,
and `trusted` is false until a good list is there again. While it is, a restarted agent takes nothing away that may be of its
objects (targets/bpf/retention.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from lbagent.model.message import Message
from lbagent.objects.records import FIELD_OF_KIND, ObjectChange, ObjectSnapshot

OnChange = Callable[[Sequence[ObjectChange]], None]


class Source(Protocol):
    """One origin of objects. Each object says in `origin.source` the name of the source that gave it.

    `synced` is set after the first full list, also when that failed or was empty. `trusted` says whether what the last list
    did not hold is really gone.
    """

    name: str
    synced: asyncio.Event

    @property
    def trusted(self) -> bool:
        """Whether the last list was good and not empty."""

    @property
    def distrust(self) -> Message | None:
        """Why it is not trusted: one of `problems`, or a message of its own; None when it is trusted."""

    @property
    def listed(self) -> bool:
        """Whether it gave a whole list since it began: what that holds is as it says, also when what it lacks is in doubt."""

    @property
    def remembered(self) -> bool:
        """Whether its objects are those that it remembers of an earlier agent: what the maps hold is at least as new."""

    @property
    def remedy(self) -> str:
        """What an operator can do about a source that is not trusted."""

    @property
    def held(self) -> int:
        """How many objects the last list did not hold, which are kept until an operator confirms that they were deleted."""

    def snapshot(self) -> ObjectSnapshot:
        """Return every object of this source now."""

    def problems(self) -> Sequence[Message]:
        """Return what is wrong now, in a stable order."""

    def resume(self) -> None:
        """Go on where an earlier agent stopped: the maps serve what it read. Called at most once, before `run`.

        A source that remembers its objects over restarts gives these, untrusted, when its first list fails, so that what
        is served has names. A source without such a memory, or whose list cannot fail, does nothing.
        """

    async def run(self, on_change: OnChange) -> None:
        """List, then watch until cancelled; call `on_change` from the event loop with each batch of changes.

        The first call after the list holds every object; also called with an empty batch when only `problems` changed.
        """


def initial_changes(objects: ObjectSnapshot) -> list[ObjectChange]:
    """Return a snapshot as the changes from nothing."""
    return [ObjectChange(kind, key, None, obj) for kind in FIELD_OF_KIND for key, obj in objects.of_kind(kind).items()]
