"""What stands between a resource and its objects, in words for `lbagent status` and the log."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from msgspec import Struct

from lbagent.kube.resources import Resource
from lbagent.model.message import Message

STAYS = "all that was read before stays as it is"


def not_read(resource: Resource) -> str:
    """Return what a resource that is optional and not listed means."""
    return f"{resource.kind} objects of the API are not read"


class ApiFailure(Struct, frozen=True):
    """A request that fails. `status` is HTTP's, 0 when there was no answer, None when the answer could not be read."""

    resource: Resource
    verb: str
    status: int | None
    text: str

    @property
    def message(self) -> Message:
        """The failure by itself."""
        kept = not_read(self.resource) if self.resource.optional else _kept([self])
        return Message(self.text, kept, kind=self.verb, key=self.resource.name, warning=self.resource.optional)


def failure_message(failures: Iterable[ApiFailure]) -> Message | None:
    """Return what is wrong with all of these, in one message: a server that is away fails for every resource alike."""
    groups: dict[int | None, list[ApiFailure]] = {}
    for failure in failures:
        groups.setdefault(failure.status, []).append(failure)
    if not groups:
        return None
    texts = [
        f"{', '.join(f'{each.verb} {each.resource.name}' for each in group)}: {group[0].text}"
        for group in groups.values()
    ]
    return Message("; ".join(texts), _kept([each for group in groups.values() for each in group]))


def _kept(failures: list[ApiFailure]) -> str:
    forbidden = ", ".join(each.resource.name for each in failures if each.status == HTTPStatus.FORBIDDEN)
    return f"allow this user the verbs list and watch on {forbidden}; {STAYS}" if forbidden else STAYS
