"""Settings of the programs, fixed at load time: the one record of lb_config, frozen before the programs load.

The verifier folds every field into the instructions, so a change of settings is a new record and reloaded programs.
Time-outs are configured in seconds and stored in ticks of 2^jiffies_shift jiffies, about a second each.
"""

from __future__ import annotations

import secrets
import struct

from msgspec import Struct

from lbagent.kernel.cpus import possible_cpus
from lbagent.maps.event_layout import events_bytes, ring_slots
from lbagent.maps.flow_layout import FLOW_LAYOUT
from lbagent.maps.layout import HOST_ORDER, LB_CONFIG, ConfigFlag
from lbagent.maps.specs import Sizes, counter_stripe_bytes, counter_stripes
from lbagent.model.extra_snat_sources import MAX_EXTRA_SNAT, ExtraSnatSources, extra_snat_stride

_NEW_FLOWS = {"any": 0, "syn": ConfigFlag.NEW_FLOWS_SYN}


class ProgramSettings(Struct, frozen=True, kw_only=True, gc=False):
    """The operator's settings for the programs. Defaults: docs/operations.md. `*_s` are seconds."""

    snat_port_min: int = 1024
    snat_port_max: int = 29999
    reply_ports: tuple[int, int] | None = (
        None  # first and last port of replies: wider than the range above while flows may be
    )
    reject_rate: int = 1000  # answers a second and CPU
    external_clusterip: bool = True
    strict_source: bool = False  # accept replies of remote backends only from the device of their route
    new_flows: str = "any"  # which packets begin a flow: any, or "syn": for TCP a SYN only
    handshake_sample: int = 8  # one of so many TCP handshakes is timed; 0: none
    timeout_new_s: int = 60  # SYN seen, or UDP without a reply
    timeout_tcp_s: int = 8000  # longer than two hours, TCP's default keepalive time
    timeout_udp_s: int = 120
    timeout_closing_s: int = 20
    extra_snat: ExtraSnatSources = ExtraSnatSources()
    echo_reply: bool = True  # pings of the addresses in lb_echo are answered or dropped
    announce: bool = False  # ARP requests and neighbor solicitations for the addresses in lb_vip are answered
    pools_alone: bool = False  # the agent serves native pools only: the agent of a cluster may run beside it
    events: int = 0  # records of all event rings; 0: none is recorded
    event_rate: int = 1000  # refusals recorded a second and CPU
    sample: int = (
        0  # one of so many packets of the quick path is recorded, and all others; 0: only new flows and refusals
    )
    frames_after: bool = False  # with `sample`: also the translated frame
    netns_cookie: int = 0  # of the network namespace whose sockets are balanced; 0: socket programs are not loaded

    def flags(self) -> int:
        """Return the bits of lb_config.flags."""
        external = ConfigFlag.EXTERNAL_CLUSTERIP if self.external_clusterip else 0
        strict = ConfigFlag.STRICT_SOURCE if self.strict_source else 0
        announce = ConfigFlag.ANNOUNCE if self.announce else 0
        echo = ConfigFlag.ECHO_REPLY if self.echo_reply else 0
        alone = ConfigFlag.POOLS_ALONE if self.pools_alone else 0
        return external | strict | announce | echo | alone | _NEW_FLOWS[self.new_flows]


class Seeds(Struct, frozen=True, gc=False):
    """Keys of the flow table's hash. They stay for the life of the maps: a new seed would lose every flow."""

    seed0: int
    seed1: int

    @classmethod
    def fresh(cls) -> Seeds:
        """Draw new ones."""
        return cls(secrets.randbits(64), secrets.randbits(64))

    @classmethod
    def from_record(cls, record: bytes) -> Seeds | None:
        """Read them from a pinned record; None if it was never written."""
        found = cls(*struct.unpack_from("<QQ", record))  # the first two fields in all versions
        return found if found.seed0 or found.seed1 else None


_WORDS4 = [f"extra_snat4_{n}" for n in range(1, MAX_EXTRA_SNAT + 1)]
_WORDS6 = [f"extra_snat6_{n}_{part}" for n in range(1, MAX_EXTRA_SNAT + 1) for part in ("first", "second")]


def extra_snat_words(extra_snat: ExtraSnatSources, sizes: Sizes) -> dict[str, int]:
    """Return the fields of lb_config that hold the extra SNAT addresses."""
    out = dict.fromkeys((*_WORDS4, *_WORDS6), 0)
    for number, address in extra_snat.of_width(4):
        out[f"extra_snat4_{number}"] = int.from_bytes(address, HOST_ORDER)
    for number, address in extra_snat.of_width(16):
        out[f"extra_snat6_{number}_first"] = int.from_bytes(address[:8], HOST_ORDER)
        out[f"extra_snat6_{number}_second"] = int.from_bytes(address[8:], HOST_ORDER)
    return out | {"extra_snat_stride": extra_snat_stride(sizes.backends) if extra_snat.addresses() else 0}


def event_words(settings: ProgramSettings) -> dict[str, int]:
    """Return the fields of lb_config that describe the event rings."""
    rings = possible_cpus() if settings.events else 0
    slots = ring_slots(settings.events, possible_cpus())
    return {
        "event_rings": rings, "event_ring_bytes": events_bytes(slots, 1), "event_mask": max(slots - 1, 0),
        "event_rate": settings.event_rate,
        "sample_below": (1 << 32) // settings.sample if rings and settings.sample else 0,
        "frames_after": int(settings.frames_after),
    }  # fmt: skip


def extra_snat_of(record: bytes) -> ExtraSnatSources:
    """Read the extra SNAT addresses from a pinned record, which a version without them may have written."""
    if len(record) < LB_CONFIG.offsets()[f"extra_snat6_{MAX_EXTRA_SNAT}_second"] + 8:
        return ExtraSnatSources()
    whole = record[: LB_CONFIG.size].ljust(LB_CONFIG.size, b"\0")  # appended by a later version
    words = dict(zip((name for name, _ in LB_CONFIG.fields), LB_CONFIG.unpack(whole), strict=True))
    four = [int(words[name]).to_bytes(8, HOST_ORDER)[:4] for name in _WORDS4]
    halves = [int(words[name]).to_bytes(8, HOST_ORDER) for name in _WORDS6]
    six = [first + second for first, second in zip(halves[::2], halves[1::2], strict=True)]
    return ExtraSnatSources(*(tuple(address if any(address) else b"" for address in found) for found in (four, six)))


def snat_ports_of(record: bytes) -> tuple[int, int]:
    """Read the first and the last SNAT port from a pinned record."""
    return _pair(record, "snat_port")


def reply_ports_of(record: bytes) -> tuple[int, int]:
    """Read the first and the last port of replies from a pinned record; of a version without them: the SNAT ports."""
    has_them = len(record) >= LB_CONFIG.offsets()["reply_port_max"] + 8
    return _pair(record, "reply_port") if has_them else snat_ports_of(record)


def _pair(record: bytes, name: str) -> tuple[int, int]:
    at = LB_CONFIG.offsets()
    first, last = (
        int.from_bytes(record[at[each] : at[each] + 8], HOST_ORDER) for each in (f"{name}_min", f"{name}_max")
    )
    return first, last


def tick_shift(hz: int) -> int:
    """Return the shift that turns jiffies into ticks nearest to a second (HZ 100: 1.28 s, 250: 1.02, 300: 0.85, 1000: 1.02)."""
    return min(range(14), key=lambda shift: abs((1 << shift) / hz - 1))


def pack_config(settings: ProgramSettings, sizes: Sizes, seeds: Seeds, hz: int, old: Sizes | None = None) -> bytes:
    """Return the lb_config record. Masks count buckets' entries, slots and backends, all powers of two.

    `old` are the sizes of the maps from which flows are being moved; a table of the same size is not moved.
    """
    shift = tick_shift(hz)

    def ticks(seconds: int) -> int:
        return max(1, round(seconds * hz / (1 << shift)))

    timeouts = {
        "timeout_new": ticks(settings.timeout_new_s), "timeout_tcp": ticks(settings.timeout_tcp_s),
        "timeout_udp": ticks(settings.timeout_udp_s), "timeout_closing": ticks(settings.timeout_closing_s),
    }  # fmt: skip
    reply_port_min, reply_port_max = settings.reply_ports or (settings.snat_port_min, settings.snat_port_max)
    values = {
        "seed0": seeds.seed0, "seed1": seeds.seed1,
        "flow4_mask": sizes.flow4 - 1, "flow6_mask": sizes.flow6 - 1,
        "snat4_mask": sizes.snat4 - 1, "snat6_mask": sizes.snat6 - 1,
        "path_mask": sizes.backends - 1, "jiffies_shift": shift,
        "snat_port_min": settings.snat_port_min, "snat_port_max": settings.snat_port_max,
        "reject_rate": settings.reject_rate, "maglev_size": sizes.maglev_size, "flags": settings.flags(),
        "counter_stripes": counter_stripes(sizes), "counter_stripe_bytes": counter_stripe_bytes(sizes),
        "hz": hz, **timeouts, "timeout_longest": max(timeouts.values()),
        **{f"{name}_old_mask": _old_mask(sizes, old, name) for name in ("flow4", "flow6", "snat4", "snat6")},
        **extra_snat_words(settings.extra_snat, sizes), "netns_cookie": settings.netns_cookie, "flow_layout": FLOW_LAYOUT,
        "reply_port_min": reply_port_min, "reply_port_max": reply_port_max,
        "handshake_below": (1 << 32) // settings.handshake_sample if settings.handshake_sample else 0,
        **event_words(settings),
    }  # fmt: skip
    return LB_CONFIG.pack(*(values[name] for name, _ in LB_CONFIG.fields))


def _old_mask(sizes: Sizes, old: Sizes | None, name: str) -> int:
    before = getattr(old or sizes, name)
    return before - 1 if before != getattr(sizes, name) else 0
