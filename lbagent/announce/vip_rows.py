"""What `lbagent vip` shows: each address with its state and the reason, and the sentences that answer "why is it not announced"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbagent.announce.announcer import Announcer, in_use_text
from lbagent.announce.l2.placements import NO_ENDPOINT_HERE, NOT_SERVED_HERE
from lbagent.announce.l2.vip_machine import Phase
from lbagent.announce.wanted import WantedVip
from lbagent.api.types import VipAnswer, VipRow
from lbagent.errors import ConfigError, NotFound
from lbagent.model.address import format_ip, parse_ip
from lbagent.objects.records import Service
from lbagent.pools.announcement import L2

ANNOUNCED, STANDBY, CONFLICT, WITHDRAWN = "announced", "standby", "conflict", "withdrawn"
# What an operator does about a reason, by how the reason begins
_ADVICE = (
    ("the node is cordoned", "kubectl uncordon NODE, or leave it to the other nodes"),
    ("the node has the label", "take the label away if the node is to get traffic"),
    ("the node has not the labels", "give the node these labels, or change l2.nodeSelector"),
    (NOT_SERVED_HERE, "see `lbagent svc get` for the states of the backends, and `lbagent backend clear-state`"),
    (
        "the programs of this node",
        "see `lbagent svc get` for the states of the backends, and `lbagent backend clear-state`",
    ),
    ("policy Local", "see `kubectl get endpointslices` for where the endpoints are; policy Cluster needs none here"),
    (
        "no device has an address",
        "give a device an address of this network, name devices in l2.devices, or announce by BGP",
    ),
    ("no device of l2.devices", "see `ip link` and l2.devices"),
    ("no programs are on", "add --device, and see `lbagent status`"),
    ("a device of this node has the address", "take the address off the device, or out of the pool"),
    ("Leases are not known", "see that the API server can be reached, and deploy/cloud/announce.yaml for the rights"),
    ("no endpoint", "see why no Pod of the Service is ready"),
)


def require_announcer(announcer: Announcer | None) -> Announcer:
    """Return what there is. Raises NotFound for an agent that announces nothing."""
    if announcer is None:
        raise NotFound("this agent announces no addresses; start it with --announce FILE, a file of address pools")
    return announcer


def announced_vips(announcer: Announcer | None) -> dict[tuple[str, str], bool]:
    """Return whether this node announces it, by address and mode; nothing without an announcer."""
    return {(row.address, row.mode): row.state == ANNOUNCED for row in (vip_rows(announcer) if announcer else ())}


def vip_rows(announcer: Announcer) -> list[VipRow]:
    """Return a row for each address and mode, by address."""
    vips = sorted((announcer.wanted or {}).values(), key=lambda vip: (len(vip.address), vip.address))
    return [_l2_row(announcer, vip) if mode == L2 else _bgp_row(announcer, vip) for vip in vips for mode in vip.modes]


def _l2_row(announcer: Announcer, vip: WantedVip) -> VipRow:
    state, node, reason = _l2_state(announcer, vip.address)
    return VipRow(format_ip(vip.address), vip.pool, L2, state, node, list(vip.services), reason)


def _l2_state(announcer: Announcer, address: bytes) -> tuple[str, str, str]:
    """Return the state, the node that announces the address, and the reason."""
    machine, refusal = announcer.machines.get(address), announcer.refusals.get(address, "")
    if machine is None:
        return STANDBY, "", "it was not looked at yet"
    if machine.phase is Phase.CONFLICT:
        return CONFLICT, "", in_use_text(address, machine.stranger)
    if machine.answers and not refusal:
        return ANNOUNCED, announcer.node, ""
    view = machine.view
    leader = view.holder if view.holder != announcer.node and view.holder_dead_s < 0 else ""
    if leader or machine.yielded_to:
        leader = leader or machine.yielded_to
        return STANDBY, leader, refusal or f"{leader} announces it"
    if refusal:
        return WITHDRAWN, "", refusal
    if view.elects and not view.fresh:
        failure = announcer.election.failure if announcer.election else ""
        return (
            STANDBY,
            "",
            "Leases are not known now, and only a leader goes on without them" + (failure and f": {failure}"),
        )
    if view.preferred not in ("", announcer.node):
        return STANDBY, "", f"{view.preferred} is to announce it"
    return STANDBY, "", "it is probed whether another host has the address"


def _bgp_row(announcer: Announcer, vip: WantedVip) -> VipRow:
    untold = announcer.routes.refusal() if announcer.routes else "no BGP speaker runs on this node"
    is_routed = not untold and vip.address in announcer.wanted_routes()
    if is_routed:
        reason = ""
    elif refusal := announcer.bgp_refusal():
        reason = refusal
    elif not vip.has_endpoint:
        reason = "no endpoint of its Services is ready, so the route is withdrawn"
    elif not vip.admits(announcer.node):
        reason = NO_ENDPOINT_HERE
    elif not announcer.serves(vip.address):
        reason = "the programs of this node send no new connections to its endpoints, so the route is withdrawn"
    else:
        reason = untold
    state, node = (ANNOUNCED, announcer.node) if is_routed else (WITHDRAWN, "")
    return VipRow(format_ip(vip.address), vip.pool, "bgp", state, node, list(vip.services), reason)


def why(announcer: Announcer, name: str) -> VipAnswer:
    """Explain an address or the addresses of a Service. Raises NotFound for one that is not known, ConfigError for no name."""
    rows = vip_rows(announcer)
    if "/" in name:
        service = announcer.objects.services.get(name)
        if service is None:
            raise NotFound(f"no Service {name} is known here; see `lbagent svc list`")
        found = [row for row in rows if name in row.services]
        lines = list(_about_service(announcer, service, found))
    else:
        try:
            address = parse_ip(name)
        except ValueError:
            raise ConfigError(f"{name!r} is neither an address nor NAMESPACE/NAME") from None
        found = [row for row in rows if row.address == format_ip(address)]
        lines = _about_address(announcer, address, found)
    is_announced = any(row.state == ANNOUNCED or (row.state == STANDBY and row.node) for row in found)
    lines += [line for row in found for line in _about_row(row)]
    former = {announcer.former_leader(parse_ip(row.address)): None for row in found if row.state == ANNOUNCED}
    lines += [f"  connections from before go on by {node}, which led before" for node in former if node]
    return VipAnswer(is_announced, lines)


def _about_address(announcer: Announcer, address: bytes, found: Sequence[VipRow]) -> list[str]:
    if found:
        return []
    text, pool = format_ip(address), announcer.pools.pool_of(address)
    if pool is None:
        raise NotFound(f"{text} is in no pool of --announce, and no Service's that is; see `lbagent vip list`")
    if not pool.announce:
        return [f"{text}: pool {pool.name} says `announce: []`: nothing announces its addresses; add l2 or bgp there"]
    return [f"{text}: no Service has this address of pool {pool.name}; an address is announced while a Service has it"]


def _about_service(announcer: Announcer, service: Service, found: Sequence[VipRow]) -> Iterator[str]:
    addresses = dict.fromkeys((*service.ingress, *service.external_ips))
    if service.ignored:
        yield f"{service.key}: this agent does not serve it: {service.ignored}"
    elif not addresses:
        told = "its status has none: see `lbagent cloud plan`, and the Events of the Service"
        yield f"{service.key}: it has no address: " + (
            told if service.type == "LoadBalancer" else f"it is of type {service.type}"
        )
    shown = {row.address for row in found}
    for address in addresses:
        if format_ip(address) not in shown:
            try:
                yield from _about_address(announcer, address, ())
            except NotFound as error:
                yield str(error)


def _about_row(row: VipRow) -> Iterator[str]:
    head = f"{row.address} ({row.mode}, pool {row.pool})"
    if row.state == ANNOUNCED:
        yield f"{head}: announced from {row.node}, this node"
        return
    yield f"{head}: " + (
        f"announced from {row.node}; not from this node: {row.reason}" if row.node else f"{row.state}: {row.reason}"
    )
    advice = next((text for begin, text in _ADVICE if row.reason.startswith(begin)), "")
    if advice and not row.node:
        yield f"  {advice}"
