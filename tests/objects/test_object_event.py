"""Messages that become Events."""

from __future__ import annotations

from lbagent.model.message import Message
from lbagent.objects.object_event import MessageEvents, ObjectEvent

SCTP = Message(
    "SCTP packets are not balanced yet",
    "they pass untouched",
    "spec.ports[0].protocol",
    "Service",
    "shop/calls",
    event="ProtocolNotSupported",
)


def test_a_message_with_a_reason_is_an_event_once_while_it_holds() -> None:
    given: list[ObjectEvent] = []
    events = MessageEvents([given.append])
    events.update([Message("only for the log", kind="Service", key="shop/web"), SCTP])
    events.update([SCTP])
    text = "spec.ports[0].protocol: SCTP packets are not balanced yet; they pass untouched"
    assert given == [ObjectEvent("Service", "shop/calls", "ProtocolNotSupported", text, warning=True)]
    events.update([])
    events.update([SCTP])
    assert len(given) == 2
