"""The settings of the programs that a reader of flows needs: hash seeds, clock, time-outs; from the record of lb_config."""

from __future__ import annotations

import struct

from msgspec import Struct

from lbagent.maps.flow_layout import FlowState
from lbagent.maps.layout import LB_CONFIG, PathL4

_AT = LB_CONFIG.offsets()


class FlowSettings(Struct, frozen=True):
    """Fields of lb_config. `tick_s`: seconds of a tick, the unit of ages; 0: no programs have been loaded."""

    seeds: tuple[int, int] = (0, 0)
    jiffies_shift: int = 0
    tick_s: float = 0.0
    netns_cookie: int = 0
    extra_snat_stride: int = 0
    timeout_new: int = 0
    timeout_tcp: int = 0
    timeout_udp: int = 0
    timeout_closing: int = 0

    def timeout(self, l4: int, state: int) -> int:
        """Return after how many ticks without a packet a flow ends. Source: ct_timeout() of ct_value.h."""
        if state == FlowState.CLOSING:
            return self.timeout_closing
        if state != FlowState.ESTABLISHED:
            return self.timeout_new
        return self.timeout_udp if l4 == PathL4.UDP else self.timeout_tcp

    def ticks_over(self, seconds: float | None) -> int:
        """Return the fewest ticks that are longer than so many seconds; 0 for None."""
        return 0 if seconds is None else int(seconds / (self.tick_s or 1.0)) + 1


def flow_settings(record: bytes) -> FlowSettings:
    """Return the settings of a record of lb_config, `b""`: of no programs."""

    def field(name: str) -> int:
        """A field that the record of an earlier version lacks is 0."""
        at = _AT[name]
        return int(struct.unpack_from("=Q", record, at)[0]) if at + 8 <= len(record) else 0

    shift, hz = field("jiffies_shift"), field("hz")
    return FlowSettings(
        (field("seed0"), field("seed1")),
        shift,
        (1 << shift) / hz if hz else 0.0,
        *(field(name) for name in FlowSettings.__struct_fields__[3:]),
    )


def ticks_now(settings: FlowSettings, *, is_needed: bool) -> int | None:
    """Return the clock of last seen, modulo 2^16. It needs the right to load a program: without, None, or KernelError if needed."""
    from lbagent.errors import LbError
    from lbagent.kernel.jiffies import jiffies

    try:
        return jiffies() >> settings.jiffies_shift & 0xFFFF
    except LbError:
        if is_needed:
            raise
        return None
