"""Events: messages about an object for its users, beside the log of this node, if the object's source supports them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from lbagent.model.message import Message


class ObjectEvent(Struct, frozen=True, gc=False):
    """A message about an object. `reason` is one word in CamelCase, as in Kubernetes; `key` is the object's own.

    `uid` is '' if the sink has to look it up.
    """

    kind: str
    key: str
    reason: str
    text: str
    warning: bool = False
    uid: str = ""


EventSink = Callable[[ObjectEvent], None]  # takes an event and returns at once; delivery is best effort


class MessageEvents:
    """Gives sinks an Event for each new message with a reason for one."""

    def __init__(self, sinks: Sequence[EventSink]) -> None:
        self._sinks = sinks
        self._known: frozenset[Message] = frozenset()

    def update(self, messages: Sequence[Message]) -> None:
        """Take all current messages."""
        found = [message for message in messages if message.event]
        known, self._known = self._known, frozenset(found)
        for message in found:
            if message not in known:
                text = "; ".join(filter(None, (f"{message.field}: {message.problem}", message.kept)))
                for sink in self._sinks:
                    sink(ObjectEvent(message.kind, message.key, message.event, text, warning=True))
