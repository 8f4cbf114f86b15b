"""The agent beside a command that shows what happens: it may go, and come back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from lbagent.api.client import AgentClient
from lbagent.cli.service_names import ServiceNames
from lbagent.errors import LbError

if TYPE_CHECKING:
    from lbagent.cli.sampled_packets import SampledPackets

ASK_S = 2.0  # between two questions to the agent


class FollowedAgent:
    """The names of Services, read again when the agent has another generation; says when the agent goes and comes back."""

    def __init__(self, socket: str, state_dir: str, service: str, *, reports: bool = True) -> None:
        """Read the names; `service`: it must be known. `reports`: say on stderr when it goes and comes. Raises AgentUnreachable."""
        self._socket, self._state_dir, self._reports = socket, state_dir, reports
        self.names = ServiceNames.read(socket, state_dir)
        self.names.require(service)
        self._answers = self.names.is_complete
        self._seen: object = self._generation()
        self._asked_at = time.monotonic()
        self.sampled: SampledPackets | None = None  # what the agent records for the command

    def name_of(self, ident: int, frontend: str) -> str | None:
        """Return the Service of a frontend, as ServiceNames.of."""
        return self.names.of(ident, frontend)

    def follow(self) -> bool:
        """Look after its request, and ask it, if that was long ago; return whether the names were read again."""
        if self.sampled is not None and (sentence := self.sampled.follow()):
            click.echo(sentence, err=True)
        now = time.monotonic()
        if now - self._asked_at < ASK_S:
            return False
        self._asked_at = now
        seen = self._generation()
        if seen == self._seen:
            return False
        self._seen = seen
        if seen is None:
            self._report("the agent does not answer: its programs continue, and their events are shown")
            self._answers = False
            return False
        names = ServiceNames.read(self._socket, self._state_dir)
        if names.is_complete:
            self.names = names
            if not self._answers:
                self._report("the agent answers again")
            self._answers = True
        return names.is_complete

    def _generation(self) -> object:
        """Return what changes with each State of each agent; None: no answer."""
        try:
            status = AgentClient(self._socket, timeout_s=ASK_S).status()
        except LbError:
            return None
        return status.get("generation"), status.get("pid")

    def _report(self, text: str) -> None:
        if self._reports:
            click.echo(text, err=True)
