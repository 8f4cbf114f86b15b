"""What is served now, by the running agent or by the pinned maps alone, for commands that compare manifests with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from lbagent.api.capabilities.services import SERVICES, service_name
from lbagent.api.client import AgentClient
from lbagent.api.listed_services import ListedService, listed_services
from lbagent.api.planned_changes import LivePlan, Served, live_plan
from lbagent.config import CONTIV, Config
from lbagent.errors import AgentUnreachable, LbError, NotFound
from lbagent.model.address import L3n4Addr, Scope, parse_ip
from lbagent.model.exclusion import Exclusion
from lbagent.model.message import Message
from lbagent.model.service import CIDR
from lbagent.objects.records import FOLDER, OPERATOR
from lbagent.resolve import InForce, Options
from lbagent.sources.folder.resolve_path import resolve_path
from lbagent.targets.data_plane import LiveFlows
from lbagent.targets.offline_planes import live_flows

_BPF = "bpf"
_NODE_PORT = "NodePort"
_SETTINGS = {  # fields of Options, and the settings of the agent that they have
    "external_ips": "external-ips",
    "external_ip_ranges": "external-ip-cidr",
    "max_frontends": "max-frontends-per-service",
    "local_endpoint_weight": "local-endpoint-weight",
    "contiv_policies": "policy-compat",
    "exclusions": "exclude",
}
Row = dict[str, Any]


class ServedNow(NamedTuple):
    """What is served, and how manifests are resolved so that the same ones give the same."""

    served: Served
    options: Options
    left_out: Sequence[str] = ()  # which flows are not counted, sentences

    def planned(self, path: str) -> tuple[LivePlan, Sequence[Message]]:
        """Return what the manifests of a folder, a file or stdin ('-') would change. Raises ConfigError."""
        rows = self.served.rows
        backends = (each["address"] for row in rows for each in row["backends"])
        inside = (
            L3n4Addr.parse(row["frontend"]).with_scope(Scope.INTERNAL) for row in rows if row["scope"] == "internal"
        )
        in_force = InForce(frozenset(map(L3n4Addr.parse, backends)), frozenset(inside))
        owners = {row["frontend"]: service_name(row) for row in rows}
        of_maps = self.served.of_maps
        options = replace(self.options, keep_existing=True)

        def owner_of(frontend: L3n4Addr) -> str | None:
            return None if of_maps else owners.get(frontend.with_protocol())

        found = resolve_path(path, options, owner_of, in_force)
        return live_plan(self.served, map(SERVICES.row, listed_services(found.state))), found.messages


def served_now(socket: str, bpffs: str, options: Options, given: Collection[str] = ()) -> ServedNow:
    """Read what is served. `options` are those of the command line; all that are not `given` there are the agent's.

    Raises AgentUnreachable where no agent answers and nothing is pinned, LbError.
    """
    client = AgentClient(socket)
    try:
        status = client.status()
    except AgentUnreachable as error:
        return _of_maps(error, bpffs, options)
    rows, backends = client.services(), client.backends()
    config = Config(bpffs=bpffs or status["bpffs"] or Config().bpffs, node_name=status["node"])
    found = live_flows(config, [target["name"] for target in status["targets"]])
    sources = {source["name"] for source in status["sources"]} - {OPERATOR}
    served = Served(
        rows,
        _totals(found),
        {row["address"] for row in backends if _keeps_state(row)},
        others_stay=sources != {FOLDER},
    )
    node_ips = options.node_ips or _node_addresses(rows)
    options = replace(_with_settings(client, options, given), node_name=status["node"], node_ips=node_ips)
    return ServedNow(served, options, _left_out(found))


def _keeps_state(row: Row) -> bool:
    """Return whether the operator or a health check decides the state of a backend."""
    return str(row.get("set_by", "")).startswith(OPERATOR) or row.get("check", {}).get("state") == "down"


def _with_settings(client: AgentClient, options: Options, given: Collection[str]) -> Options:
    """Return the options with the settings that are in force in the agent, except those that are given."""
    try:
        settings = client.settings()
    except NotFound:  # an agent of an earlier version
        return options
    found: dict[str, Any] = {}
    for name, key in _SETTINGS.items():
        if name not in given and key in settings:
            found[name] = settings[key]
    if "contiv_policies" in found:
        found["contiv_policies"] = found["contiv_policies"] == CONTIV
    if "exclusions" in found:
        found["exclusions"] = tuple(map(Exclusion.parse, found["exclusions"]))
    if "external_ip_ranges" in found:
        found["external_ip_ranges"] = tuple(map(CIDR.parse, found["external_ip_ranges"]))
    return replace(options, **found)


def _of_maps(error: AgentUnreachable, bpffs: str, options: Options) -> ServedNow:
    config = Config(bpffs=bpffs or Config().bpffs, node_name=options.node_name)
    try:
        found = live_flows(config, [_BPF])
    except LbError as reason:
        raise AgentUnreachable(f"{error}; and the pinned maps cannot be read: {reason}") from None
    rows = [SERVICES.row(ListedService(svc)) for each in found for svc in each.services if not svc.wildcard]
    return ServedNow(Served(rows, _totals(found), of_maps=True), options, _left_out(found))


def _left_out(found: Sequence[LiveFlows]) -> list[str]:
    return [each.left_out for each in found if each.left_out]


def _totals(found: Sequence[LiveFlows]) -> Counter[tuple[str, str]]:
    """Return the live flows by the texts of the rows."""
    out: Counter[tuple[str, str]] = Counter()
    for each in found:
        for (frontend, backend), count in each.flows.items():
            out[frontend.with_protocol(), backend.with_protocol() if backend else ""] += count
    return out


def _node_addresses(rows: Collection[Row]) -> tuple[bytes, ...]:
    """Return the addresses that NodePorts have."""
    found = (row["frontend"] for row in rows if row["type"] == _NODE_PORT)
    return tuple(dict.fromkeys(parse_ip(text.rpartition(":")[0].strip("[]")) for text in found))
