"""In what the rules of kube-proxy differ from a State: one difference for each frontend and reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbagent.model.address import L3n4Addr, Scope, format_ip
from lbagent.model.service import SVC, SVCType
from lbagent.model.state import State
from lbagent.render.renderer_types import Difference
from lbagent.targets.kube_proxy.proxy_rules import ProxyFrontend, Range, Source, merged
from lbagent.targets.kube_proxy.proxy_table import ProxyTable

# HostPorts are a CNI plug-in's; what lbagent adds has no other type
TYPES = frozenset({SVCType.CLUSTER_IP, SVCType.NODE_PORT, SVCType.EXTERNAL_IPS, SVCType.LOAD_BALANCER})
MAX_NAMED = 10  # backends that a difference names


def proxy_differences(tables: Sequence[ProxyTable], state: State) -> Iterator[Difference]:
    """Yield what kube-proxy's tables do otherwise than the State requires, or lack, or have beside it."""
    found: dict[L3n4Addr, ProxyFrontend] = {}
    for table in tables:
        found |= table.frontends
        if table.dormant:
            yield Difference("differs", f"table {table.name} is dormant: its chains have no effect")
    rows = {
        key: row
        for key, row in state.by_frontend.items()
        if row.type in TYPES
        and key.scope is Scope.EXTERNAL
        and not row.wildcard
        and not key.last_port  # kube-proxy has no ranges of ports
        and any(key.address)  # 0.0.0.0: any own one
    }
    for key, row in rows.items():
        inside = state.by_frontend.get(key.with_scope(Scope.INTERNAL), row)
        there = found.get(key)
        if there is None:
            yield _difference("missing", "kube-proxy does not serve it", key, str(row.name))
        else:
            for detail in _details(row, inside, there):
                yield _difference("differs", detail, key, str(row.name))
    for key, there in found.items():
        if key not in rows:
            yield _difference("stale", "no Service of lbagent has it", key, there.service)


def _difference(kind: str, detail: str, frontend: L3n4Addr, service: str) -> Difference:
    return Difference(kind, detail, service or None, frontend.with_protocol())


def _details(row: SVC, inside: SVC, there: ProxyFrontend) -> Iterator[str]:
    # whether clients outside reach a ClusterIP is a setting of lbagent; kube-proxy serves them always
    sources = [each for each in Source if each is not Source.OUTSIDE or row.type is not SVCType.CLUSTER_IP]
    by_detail: dict[str, list[Source]] = {}
    for source in sources:
        wanted = row if source is Source.OUTSIDE else inside
        if detail := _backends_differ(wanted, there, source):
            by_detail.setdefault(detail, []).append(source)
    for detail, which in by_detail.items():
        names = "" if which == sources else f" for {' and '.join(each.value for each in which)}"
        yield detail + names
    timeout_s = row.affinity_timeout_s
    if timeout_s != there.affinity_s and any(there.backends.values()):
        yield f"affinity {_seconds(there.affinity_s)}, wanted {_seconds(timeout_s)}"
    yield from _ranges_differ(row, there)


def _backends_differ(row: SVC, there: ProxyFrontend, source: Source) -> str:
    wanted = {(each.address.address, each.address.port) for each in row.selectable}
    got = there.backends.get(source, frozenset())
    if got != wanted:
        return f"{_result(got, there.without)}, wanted {_result(wanted, _refusal(row))}"
    if not wanted and there.without != _refusal(row):
        return f"{_result((), there.without)}, wanted {_refusal(row)}"
    return ""


def _refusal(row: SVC) -> str:
    return "dropped" if row.no_local_backend else "refused"


def _result(backends: frozenset[tuple[bytes, int]] | set[tuple[bytes, int]] | tuple[()], without: str) -> str:
    if not backends:
        return without or "no backend"
    names = [str(L3n4Addr(address, port)) for address, port in sorted(backends)]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{'backend' if len(names) == 1 else 'backends'} {', '.join(names[:MAX_NAMED])}{more}"


def _seconds(timeout_s: int) -> str:
    return f"{timeout_s} s" if timeout_s else "none"


def _ranges_differ(row: SVC, there: ProxyFrontend) -> Iterator[str]:
    width = len(row.frontend.address) * 8
    wanted = merged([_range(each.network, each.bits) for each in row.source_ranges])
    if row.check_source_range and row.source_ranges_deny:
        yield f"clients {_clients(there.ranges, row)}, wanted all but {_clients(wanted, row)}"
        return
    # kube-proxy lets the load balancer's own address in, where the node has it
    own = _range(row.frontend.address, width)
    got = merged([*there.ranges, own]) if there.ranges is not None else None
    if got != (merged([*wanted, own]) if row.check_source_range else None):
        yield f"clients {_clients(there.ranges, row)}, wanted {_clients(wanted if row.check_source_range else None, row)}"


def _range(network: bytes, bits: int) -> Range:
    first = int.from_bytes(network, "big")
    return first, first + (1 << len(network) * 8 - bits) - 1


def _clients(ranges: Sequence[Range] | None, row: SVC) -> str:
    if ranges is None:
        return "of any address"
    width = len(row.frontend.address)
    texts = []
    for first, last in ranges[:MAX_NAMED]:
        one = format_ip(first.to_bytes(width, "big"))
        texts.append(one if first == last else f"{one}-{format_ip(last.to_bytes(width, 'big'))}")
    return f"of {', '.join(texts)}" if texts else "of no address"
