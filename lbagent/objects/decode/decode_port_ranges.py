"""Read the ranges of ports of a Service: `lbagent.io/port-range: NAME=FIRST-LAST`, several with commas between them."""

from __future__ import annotations

import re

from msgspec.structs import replace

from lbagent.nearest_word import nearest
from lbagent.objects.decode.report import Report, annotation
from lbagent.objects.decode.wire import Meta
from lbagent.objects.records import ServicePort

LEFT_OUT = "the range is left out"
MAX_PORT_RANGES = 16  # of a Service
CLOSE_NAME = 0.6  # names of ports are short, and few are compared
_RANGE = re.compile(r"([^=\s]+)\s*=\s*([^\s-]*)\s*-\s*(\S*)", re.ASCII)


def decode_port_ranges(meta: Meta, ports: tuple[ServicePort, ...], report: Report) -> tuple[ServicePort, ...]:
    """Return the ranges as ports with `last_port`; a range that is wrong is left out, or stays as it was last."""
    found = annotation(meta, "port-range")
    if found is None:
        return ()
    path, text = found
    ranges: list[ServicePort] = []
    for number, part in enumerate(text.split(",")):
        try:
            if number >= MAX_PORT_RANGES:
                raise ValueError(f"more than {MAX_PORT_RANGES} ranges")
            ranges.append(_range(part.strip(), ports, ranges))
        except ValueError as error:
            report.error(path, str(error), LEFT_OUT)
            if number >= MAX_PORT_RANGES:
                break
    last: tuple[ServicePort, ...] = report.last_value("port_ranges") or ()
    if report.is_faulty(path) and (kept := [now for each in last if (now := _still_right(each, ports, ranges))]):
        report.say_kept(path, ", ".join(f"{each.name}={each.port}-{each.last_port}" for each in kept))
        ranges += kept
    return tuple(ranges)


def _range(text: str, ports: tuple[ServicePort, ...], others: list[ServicePort]) -> ServicePort:
    read = _RANGE.fullmatch(text)
    if not text.partition("=")[2].strip():
        raise ValueError(f"{text!r} is an empty range: write NAME=FIRST-LAST")
    if read is None:
        raise ValueError(f"{text!r} is not NAME=FIRST-LAST")
    name, first, last = read[1], _port(read[2]), _port(read[3])
    own = next((port for port in ports if port.name == name), None)
    if own is None:
        raise ValueError(_unknown(name, ports))
    if first > last:
        raise ValueError(f"the range {first}-{last} is reversed")
    if first == last:
        raise ValueError(f"the range {first}-{last} has one port only: write it in spec.ports")
    found = ServicePort(name, own.protocol, first, index=own.index, last_port=last)
    if other := _overlapping(found, others):
        raise ValueError(f"the range {first}-{last} overlaps with {other.port}-{other.last_port} of {other.name}")
    return found


def _port(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= 65535:
        return int(text)
    raise ValueError(f"{text!r} is not a port of 1-65535")


def _unknown(name: str, ports: tuple[ServicePort, ...]) -> str:
    names = [port.name for port in ports if port.name]
    probable = nearest(name, names, CLOSE_NAME)
    more = f"; did you mean {probable!r}?" if probable else f"; it has {', '.join(names) or 'no port with a name'}"
    return f"the Service has no port {name!r}{more}"


def _overlapping(one: ServicePort, others: list[ServicePort]) -> ServicePort | None:
    alike = (each for each in others if each.protocol is one.protocol)
    return next((each for each in alike if each.port <= one.last_port and one.port <= each.last_port), None)


def _still_right(last: ServicePort, ports: tuple[ServicePort, ...], now: list[ServicePort]) -> ServicePort | None:
    """Return the last good range of a port that is still there and has none now; None: it cannot stay."""
    own = next((port for port in ports if port.name == last.name and port.protocol is last.protocol), None)
    if own is None or any(each.name == last.name for each in now) or _overlapping(last, now):
        return None
    return replace(last, index=own.index)
