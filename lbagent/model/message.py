"""A sentence for an operator about one field of one object."""

from __future__ import annotations

from msgspec import Struct

MAX_PROBLEM_LENGTH = 300  # characters of a problem that are shown: it may quote a value of the object


class Message(Struct, frozen=True, gc=False):
    """One sentence for an operator: what is wrong with which field of which object, and what was kept.

    A `warning` is about a part that was read and has no effect; an error is about a part that was left out.
    """

    problem: str
    kept: str = ""
    field: str = ""
    kind: str = ""  # of the object: 'Service'
    key: str = ""  # 'default/web'; without a kind any other name of its subject
    file: str = ""
    line: int = 0
    warning: bool = False
    event: str = ""  # the reason of an Event on the object, where its users need the message; '' for none

    @property
    def subject(self) -> str:
        """The subject: `Service default/web`."""
        return f"{self.kind} {self.key}" if self.kind and self.key else self.kind or self.key

    def __str__(self) -> str:
        """Return `FILE[:LINE]: KIND NAMESPACE/NAME: FIELD: what is wrong; what was kept`."""
        where = f"{self.file}:{self.line}" if self.file and self.line else self.file
        problem = self.problem if len(self.problem) <= MAX_PROBLEM_LENGTH else f"{self.problem[:MAX_PROBLEM_LENGTH]}…"
        text = ": ".join(part for part in (where, self.subject, self.field, problem) if part)
        return f"{text}; {self.kept}" if self.kept else text
