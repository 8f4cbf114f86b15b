"""Read our words about which endpoints take which flows, of which clients: tiers, stale flows, source ranges, what is excluded."""

from __future__ import annotations

import re

from lbagent.model.select import ANY_OF_TIER, TierMin
from lbagent.model.stale_flows import RESET, parse_stale_flows, stale_flows_text
from lbagent.objects.decode.report import Report, annotation
from lbagent.objects.decode.wire import Meta

MAX_TIER = 7
MAX_TIER_MIN = 65535
OF_SLICES = frozenset(("weight", "tier"))
OF_PODS = frozenset(("weight",))
_TIER_MIN = re.compile(r"([1-9][0-9]{0,4})(%?)")
_RANGES_FOR = {"loadbalancer": False, "all": True}
_EXCLUDE = {"false": False, "true": True}


def decode_tier(meta: Meta, report: Report) -> int:
    """Return the tier of a slice's endpoints."""
    found = annotation(meta, "tier")
    if found is None:
        return 0
    path, text = found
    if len(text) == 1 and text.isascii() and text.isdecimal() and int(text) <= MAX_TIER:
        return int(text)
    last: int = report.last_value("tier") or 0
    report.error(path, f"{text!r} is not a tier of 0-{MAX_TIER}", "tier 0 is used")
    if last:
        report.say_kept(path, f"tier {last}")
    return last


def decode_tier_min(meta: Meta, report: Report) -> TierMin:
    """Return how many endpoints of a tier must be usable."""
    found = annotation(meta, "tier-min")
    if found is None:
        return ANY_OF_TIER
    path, text = found
    read = _TIER_MIN.fullmatch(text)
    if read and int(read[1]) <= (100 if read[2] else MAX_TIER_MIN):
        return TierMin(int(read[1]), bool(read[2]))
    problem = f"{text!r} is neither a number of endpoints, 1-{MAX_TIER_MIN}, nor a share like 50%"
    report.error(path, problem, "a tier with a usable endpoint is enough")
    last: TierMin = report.last_value("tier_min") or ANY_OF_TIER
    if last != ANY_OF_TIER:
        report.say_kept(path, f"{last.number}{'%' if last.is_percent else ''}")
    return last


def decode_stale_flows(meta: Meta, report: Report) -> int:
    """Return for how many seconds flows go on to an endpoint that is gone from its slices (model/stale_flows.py)."""
    found = annotation(meta, "stale-flows")
    if found is None:
        return RESET
    path, text = found
    if (seconds := parse_stale_flows(text)) is not None:
        return seconds
    problem = f"unknown value {text!r}; keep, reset or drain=SECONDS is possible"
    report.error(path, problem, "the default (reset) is used")
    last: int = report.last_value("stale_flows_s") or RESET
    if last:
        report.say_kept(path, stale_flows_text(last))
    return last


def decode_ranges_for(meta: Meta, report: Report) -> bool:
    """Return whether the source ranges apply to externalIPs and node ports, too."""
    found = annotation(meta, "source-ranges-for")
    return report.choice(found[0], found[1].lower(), _RANGES_FOR, "loadbalancer", "all_ranges") if found else False


def decode_exclude(meta: Meta, report: Report) -> bool:
    """Return whether packets to the Service pass untouched."""
    found = annotation(meta, "exclude")
    return report.choice(found[0], found[1].lower(), _EXCLUDE, "false", "excluded") if found else False
