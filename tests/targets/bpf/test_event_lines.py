"""Lines of events: the same as rows that are made one by one, whatever is remembered; and each line has its own time and length."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether

from lbagent.maps.event_reader import Event
from lbagent.maps.flow_filter import FlowFilter
from lbagent.maps.reasons import Reason
from lbagent.targets.bpf.event_lines import EventLines
from lbagent.targets.bpf.event_rows import EventRows, text_line

LINK = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")


class NoMaps:
    """Maps in which no backend is."""

    def get(self, _name: str, _key: bytes) -> bytes | None:
        return None


def frame(number: int) -> bytes:
    version, proto, port, flags, tag = (
        number & 1,
        number >> 1 & 1,
        1000 + (number >> 2 & 1),
        "SA"[number >> 3 & 1],
        number >> 4 & 1,
    )
    ip = IPv6(src="fd00::7", dst="fd00::1") if version else IP(src="10.0.0.7", dst="10.0.0.1")
    l4 = UDP(sport=port, dport=80) if proto else TCP(sport=port, dport=80, flags=flags, seq=number)
    return bytes(LINK / (Dot1Q(vlan=5) / ip if tag else ip) / l4)


FRAMES = [frame(number) for number in range(32)]
EVENTS = st.builds(
    lambda frame, reason, length, time, service, cpu: Event(
        time=time, cpu=cpu, number=0, generation=3, device=1, length=length, reason=reason, hook=0, backend=0, service=service,
        snat_port=0, frame=frame,
    ),
    st.sampled_from(FRAMES), st.sampled_from((int(Reason.FWD_NEW), int(Reason.FWD_ESTABLISHED), int(Reason.REJECT_NO_BACKEND))),
    st.integers(42, 1514), st.floats(1.7e9, 1.8e9), st.integers(0, 2), st.integers(0, 1),
)  # fmt: skip


@given(st.lists(EVENTS, max_size=20))
def test_lines_are_those_of_rows(events: list[Event]) -> None:
    rows = EventRows(NoMaps(), lambda ident, frontend: f"shop/{ident}-{frontend}" if ident else None)  # type: ignore[arg-type]
    as_json = EventLines(rows, FlowFilter(), as_json=True)
    as_text = EventLines(rows, FlowFilter(), as_json=False)
    for event in events:
        row = rows.row(event)
        assert as_json.line(event) == json.dumps(row, separators=(",", ":"))
        assert as_text.line(event) == text_line(row)
        assert as_json.selects(event)


@pytest.mark.parametrize("forgets", [False, True])
def test_names_are_remembered_until_they_are_read_again(forgets: bool) -> None:
    names = ["shop/old"]
    rows = EventRows(NoMaps(), lambda _ident, _frontend: names[0])  # type: ignore[arg-type]
    lines = EventLines(rows, FlowFilter(service="shop/old"), as_json=True)
    event = Event(0.0, 0, 0, 3, 1, 60, int(Reason.FWD_NEW), 0, 0, 1, 0, FRAMES[0])
    assert lines.selects(event)
    assert '"service":"shop/old"' in lines.line(event)
    names[0] = "shop/new"
    if forgets:
        lines.forget()
    assert lines.selects(event) is not forgets
    assert f'"service":"shop/{"new" if forgets else "old"}"' in lines.line(event)
