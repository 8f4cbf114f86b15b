"""Logs each problem once: when it begins, and when it ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lbagent.model.message import Message

WARNING = "warning about an object"
MAX_LOGGED = 200  # messages per call; `lbagent status` shows more


class MessageLog:
    """The logged messages that still hold."""

    def __init__(self, log: logging.Logger, event: str) -> None:
        """Log under this logger; `event` is the constant message of a new error."""
        self._log = log
        self._event = event
        self._known: dict[Message, None] = {}

    def update(self, messages: Sequence[Message]) -> None:
        """Log the new ones of all current problems, and log when none is left."""
        known, self._known = self._known, dict.fromkeys(messages)
        new = [message for message in self._known if message not in known]
        for message in new[:MAX_LOGGED]:
            level, event = (logging.WARNING, WARNING) if message.warning else (logging.ERROR, self._event)
            self._log.log(level, event, extra={"error": str(message)})
        if len(new) > MAX_LOGGED:
            self._log.warning("too many messages: the rest is not logged", extra={"left_out": len(new) - MAX_LOGGED})
        if known and not messages:
            self._log.info("the input has no faults any more")
