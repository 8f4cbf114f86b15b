"""Whether maps, tables and ids are nearly full, and whether the flow tables are swept."""

from __future__ import annotations

from collections.abc import Iterator

from lbagent.bpf.run.sweep import FULL_REASONS
from lbagent.maps.layout import NEXTHOPS, PORT_RANGES, SERVICE_IDS
from lbagent.maps.lbmaps import SIZE_OPTION
from lbagent.maps.reasons import Event, Reason, label
from lbagent.model.check import Check, Result, Severity
from lbagent.model.fair_share import guard_of
from lbagent.targets.bpf.checks.running_context import RunningContext
from lbagent.targets.bpf.namespace_use import BACKEND_IDS

NEARLY_FULL = 0.9  # of a map's entries
_SERVICE_IDS = (
    f"{SERVICE_IDS:,} service ids, fixed: an address with port and protocol takes one; use fewer of them in Services"
)
_PORT_RANGES = (
    f"{PORT_RANGES:,} prefixes, fixed: at most 30 for a range of ports; a range that is a power of two takes one"
)
# The remedy for maps without a size option.
_FIXED_SIZE = {
    "lb4_reverse_nat": _SERVICE_IDS,
    "lb6_reverse_nat": _SERVICE_IDS,
    "lb4_maglev": _SERVICE_IDS,
    "lb6_maglev": _SERVICE_IDS,
    "lb4_port_range": _PORT_RANGES,
    "lb6_port_range": _PORT_RANGES,
    "lb_nexthop": f"{NEXTHOPS - 1:,} next hops, fixed: packets to further neighbours cost a FIB look-up",
}
# Only the backend with many flows is short of ports.
_OF_ONE_BACKEND = {Reason.DROP_SNAT_EXHAUSTED, Event.SNAT_RECLAIMED}


def map_nearly_full(context: RunningContext) -> Iterator[Result]:
    """Report the maps, flow tables and ids that are nearly full."""
    yield from maps_in_use(context)
    yield from ids_in_use(context)


def maps_in_use(context: RunningContext) -> Iterator[Result]:
    """Report each map, with the flow tables, of which 90 % are in use."""
    for name, (used, size) in sorted(context.plane.usage().items()):
        if size and used >= NEARLY_FULL * size:
            remedy = _FIXED_SIZE[name] if name in _FIXED_SIZE else f"raise {SIZE_OPTION[name]}"
            values = {"map": name, "used": used, "size": size, "share": used / size}
            yield Result(name, values, remedy=remedy)


def ids_in_use(context: RunningContext) -> Iterator[Result]:
    """Report the kinds of ids of which at least 80 % are in use, and the namespaces with most of them.

    From there on a namespace above its fair share gets no more.
    """
    plane = context.plane
    for name, (used, size) in plane.id_usage().items():
        if used >= guard_of(size):
            most = ", ".join(f"{each} {number}" for each, number in plane.largest_namespaces(name).items())
            text = f"{used} of {size} {name} are in use ({used / size:.0%}), most of them by namespace: {most}"
            remedy = (
                "raise --max-backends, or limit a namespace with --max-endpoints-per-namespace"
                if name == BACKEND_IDS
                else "use fewer ports or addresses in Services; lower --max-frontends-per-service"
            )
            yield Result(name, text=text, remedy=remedy)


def table_overflows(context: RunningContext) -> Iterator[Result]:
    """Report tables that rejected flows in the last minute, by the sweeps' counts: the flow table, the SNAT ports."""
    sweeper = context.plane.sweeper
    for reason in sweeper.full() if sweeper else ():
        problem, option = FULL_REASONS[reason]
        severity = Severity.DEGRADED if reason in _OF_ONE_BACKEND else None
        yield Result(label(reason), {"problem": problem, "option": option}, severity=severity)


def sweep_failed(context: RunningContext) -> Iterator[Result]:
    """Return why the flow tables are not swept."""
    sweeper = context.plane.sweeper
    if sweeper and sweeper.failure:
        yield Result("flow tables", {"error": sweeper.failure})


CHECKS = (
    Check(
        "map-nearly-full",
        "the entries of maps and flow tables, and the service and backend ids, that are in use",
        map_nearly_full,
        "map {map} is nearly full: {used} of {size} entries ({share:.0%})",
    ),
    Check(
        "table-overflows",
        "whether the flow table or the SNAT ports turned flows away",
        table_overflows,
        "{problem}",
        "raise {option}",
    ),
    Check(
        "sweep-failed",
        "whether the flow tables are swept",
        sweep_failed,
        "the flow tables are not swept: {error}",
        "expired flows keep their entries until a packet needs one; `lbagent verify` reads the maps; the agent retries",
    ),
)
