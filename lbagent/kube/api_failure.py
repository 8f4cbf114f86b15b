"""Failures of a resource, as text for `lbagent status` and the log."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from msgspec import Struct

from lbagent.kube.resources import Resource
from lbagent.model.message import Message

STAYS = "all that was read before stays as it is"


def not_read(resource: Resource) -> str:
    """Return the consequence of an optional resource that is not listed."""
    return f"{resource.kind} objects of the API are not read"


class ApiFailure(Struct, frozen=True):
    """A failed request. `status` is HTTP's, 0 if there was no answer, None if the answer could not be read."""

    resource: Resource
    verb: str
    status: int | None
    text: str

    @property
    def message(self) -> Message:
        """The failure as text."""
        kept = not_read(self.resource) if self.resource.optional else _kept([self])
        return Message(self.text, kept, kind=self.verb, key=self.resource.name, warning=self.resource.optional)


def failure_message(failures: Iterable[ApiFailure]) -> Message | None:
    """Return all of these failures in one message: if the server does not answer, every resource fails in the same way."""
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
