"""The rows of `lbagent vip`: each address with its state and the reason, and the sentences of `vip why`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from lbagent.announce.announce_refusal import AnnounceRefusal, RefusalReason
from lbagent.announce.announcer import Announcer, in_use_text
from lbagent.announce.desired_vips import DesiredVip
from lbagent.announce.l2.vip_machine import Phase
from lbagent.errors import ConfigError, NotFound
from lbagent.model.address import format_ip, parse_ip
from lbagent.objects.records import Service
from lbagent.pools.announcement import BGP, L2

ANNOUNCED, STANDBY, CONFLICT, WITHDRAWN = "announced", "standby", "conflict", "withdrawn"


class VipRow(Struct):
    """An address that is to be announced, and one way of doing it. Its words in lists: api/capabilities/vips.py."""

    address: str
    pool: str
    mode: str  # l2, bgp
    state: str  # announced (by this node), standby (another node, or soon), conflict, withdrawn
    node: str  # that announces it, as far as this one knows; ''
    services: list[str]  # NAMESPACE/NAME
    reason: str  # why it is not announced by this node; ''


class VipAnswer(Struct):
    """Whether an address, or the addresses of a Service, are announced, and why."""

    announced: bool  # somewhere
    lines: list[str]  # sentences


class _Standing(NamedTuple):
    """A row, with the refusal whose sentence is its reason; None if the reason is not a refusal."""

    row: VipRow
    refusal: AnnounceRefusal | None


def vip_rows(announcer: Announcer) -> list[VipRow]:
    """Return a row for each address and mode, by address."""
    return [standing.row for standing in _standings(announcer)]


def _standings(announcer: Announcer) -> list[_Standing]:
    vips = sorted((announcer.wanted or {}).values(), key=lambda vip: (len(vip.address), vip.address))
    return [
        _l2_standing(announcer, vip) if mode == L2 else _bgp_standing(announcer, vip)
        for vip in vips
        for mode in vip.modes
    ]


def _standing(vip: DesiredVip, mode: str, state: str, node: str, reason: AnnounceRefusal | str) -> _Standing:
    row = VipRow(format_ip(vip.address), vip.pool, mode, state, node, list(vip.services), str(reason))
    return _Standing(row, reason if isinstance(reason, AnnounceRefusal) else None)


def _l2_standing(announcer: Announcer, vip: DesiredVip) -> _Standing:
    state, node, reason = _l2_state(announcer, vip.address)
    return _standing(vip, L2, state, node, reason)


def _l2_state(announcer: Announcer, address: bytes) -> tuple[str, str, AnnounceRefusal | str]:
    """Return the state, the node that announces the address, and the reason."""
    machine, refusal = announcer.machines.get(address), announcer.refusals.get(address)
    if machine is None:
        return STANDBY, "", "not decided yet"
    if machine.phase is Phase.CONFLICT:
        return CONFLICT, "", in_use_text(address, machine.conflicting_mac)
    if machine.answers and not refusal:
        return ANNOUNCED, announcer.node, ""
    status = machine.lease_status
    leader = status.holder if status.holder != announcer.node and status.holder_dead_s < 0 else ""
    if leader or machine.yielded_to:
        leader = leader or machine.yielded_to
        return STANDBY, leader, refusal or f"{leader} announces it"
    if refusal:
        return WITHDRAWN, "", refusal
    if status.elects and not status.fresh:
        failure = announcer.election.failure if announcer.election else ""
        return STANDBY, "", AnnounceRefusal(RefusalReason.LEASES_UNKNOWN, failure and f": {failure}")
    if status.preferred not in ("", announcer.node):
        return STANDBY, "", f"{status.preferred} will announce it"
    return STANDBY, "", "probing whether another host uses the address"


def _bgp_standing(announcer: Announcer, vip: DesiredVip) -> _Standing:
    untold = _untold(announcer)
    if untold is None and vip.address in announcer.wanted_routes():
        return _standing(vip, BGP, ANNOUNCED, announcer.node, "")
    refusal = announcer.bgp_refusal()
    if refusal is None and not vip.has_endpoint:
        refusal = AnnounceRefusal(RefusalReason.NO_ENDPOINT)
    elif refusal is None and not vip.admits(announcer.node):
        refusal = AnnounceRefusal(RefusalReason.NO_ENDPOINT_HERE)
    elif refusal is None and not announcer.serves(vip.address):
        refusal = AnnounceRefusal(RefusalReason.NOT_SERVED)
    return _standing(vip, BGP, WITHDRAWN, "", refusal or untold or "")


def _untold(announcer: Announcer) -> AnnounceRefusal | None:
    """Return why no router gets routes, None when one does."""
    if announcer.routes is None:
        return AnnounceRefusal(RefusalReason.NO_SPEAKER)
    text = announcer.routes.refusal()
    return AnnounceRefusal(RefusalReason.NO_SESSION, text) if text else None


def why(announcer: Announcer, name: str) -> VipAnswer:
    """Explain an address or the addresses of a Service. Raises NotFound for one that is not known, ConfigError for no name."""
    standings = _standings(announcer)
    if "/" in name:
        service = announcer.objects.services.get(name)
        if service is None:
            raise NotFound(f"no Service {name} is known here; see `lbagent svc list`")
        found = [each for each in standings if name in each.row.services]
        lines = list(_about_service(announcer, service, found))
    else:
        try:
            address = parse_ip(name)
        except ValueError:
            raise ConfigError(f"{name!r} is neither an address nor NAMESPACE/NAME") from None
        found = [each for each in standings if each.row.address == format_ip(address)]
        lines = _about_address(announcer, address, found)
    rows = [each.row for each in found]
    is_announced = any(row.state == ANNOUNCED or (row.state == STANDBY and row.node) for row in rows)
    lines += [line for each in found for line in _about_standing(each)]
    former = {announcer.former_leader(parse_ip(row.address)): None for row in rows if row.state == ANNOUNCED}
    lines += [f"  existing connections are forwarded to the previous leader {node}" for node in former if node]
    return VipAnswer(is_announced, lines)


def _about_address(announcer: Announcer, address: bytes, found: Sequence[_Standing]) -> list[str]:
    if found:
        return []
    text, pool = format_ip(address), announcer.pools.pool_of(address)
    if pool is None:
        raise NotFound(
            f"{text} is in no pool of --announce, and no Service with such an address has it; see `lbagent vip list`"
        )
    if not pool.announce:
        return [f"{text}: pool {pool.name} has `announce: []`: its addresses are not announced; add l2 or bgp there"]
    return [f"{text}: no Service has this address of pool {pool.name}; an address is announced while a Service has it"]


def _about_service(announcer: Announcer, service: Service, found: Sequence[_Standing]) -> Iterator[str]:
    addresses = dict.fromkeys((*service.ingress, *service.external_ips))
    if service.ignored:
        yield f"{service.key}: this agent does not serve it: {service.ignored}"
    elif not addresses:
        told = "its status has none: see `lbagent cloud plan`, and the Events of the Service"
        yield f"{service.key}: it has no address: " + (
            told if service.type == "LoadBalancer" else f"it is of type {service.type}"
        )
    shown = {each.row.address for each in found}
    for address in addresses:
        if format_ip(address) not in shown:
            try:
                yield from _about_address(announcer, address, ())
            except NotFound as error:
                yield str(error)


def _about_standing(standing: _Standing) -> Iterator[str]:
    row, refusal = standing
    head = f"{row.address} ({row.mode}, pool {row.pool})"
    if row.state == ANNOUNCED:
        yield f"{head}: announced from {row.node}, this node"
        return
    yield f"{head}: " + (
        f"announced from {row.node}; not from this node: {row.reason}" if row.node else f"{row.state}: {row.reason}"
    )
    if refusal and refusal.reason.advice and not row.node:
        yield f"  {refusal.reason.advice}"
