"""Decides which frontends and backends of a State get the remaining ids, and the messages for the others. Pure.

A frontend with a service id is served: it continues with the backends that have an id. A new frontend needs an id for each of its
backends, else it is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from lbagent.errors import LbError
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.cooperative import BETWEEN_YIELDS, Cooperative
from lbagent.model.fair_share import GUARD
from lbagent.model.id_claims import Grants, IdClaim, grant, id_rank, namespace_of
from lbagent.model.service import SVC, ServiceName

_NAMED = 3  # backends without an id that a message lists
_ROUNDS = 3  # each assigns the service ids of frontends without backend ids to others


class IdsExhausted(LbError):
    """There is no id: the new frontend, or the listed backends, are left out; the others stay served."""


class Ids(Protocol):
    """The interface of an allocator for this module."""

    @property
    def capacity(self) -> int:
        """The number of ids."""

    @property
    def free(self) -> int:
        """The number of ids that can be assigned now."""

    @property
    def advice(self) -> str:
        """What to do when none is left."""

    def get(self, key: L3n4Addr) -> int | None:
        """Return the id of a key."""


class Credit(Struct):
    """How many ids each Service released by the same change, or by the one before: it gets as many new ones first."""

    frontends: dict[ServiceName, int] = field(default_factory=dict)
    backends: dict[ServiceName, int] = field(default_factory=dict)


class Shares(Struct):
    """The grants of a State. `left_out` holds new frontends by id(SVC); `credit` is the rest of it."""

    credit: Credit
    left_out: dict[int, IdsExhausted]
    frontends: set[L3n4Addr]
    backends: set[L3n4Addr]
    reason: Callable[[ServiceName, Sequence[L3n4Addr]], str]  # why these backends of a Service got no id


def sharing(
    services: Sequence[SVC],
    whole: Container[int],
    service_ids: Ids,
    backend_ids: Ids,
    credit: Credit,
    most: int,
) -> Cooperative[Shares]:
    """Decide on all ids that the frontends and backends of a State lack.

    `whole` are the id(SVC) of those that lack none. `most`: backends of each namespace, 0 for no limit.
    """
    new = {id(svc): svc for svc in services if not svc.wildcard and service_ids.get(svc.frontend) is None}
    refused: dict[int, IdsExhausted] = {}
    for _ in range(_ROUNDS):
        yield
        left = Credit(dict(credit.frontends), dict(credit.backends))
        frontends = _grant_frontends([svc for svc in services if id(svc) not in refused], new, service_ids, left)
        left_out = refused | {
            id(svc): _without_service_id(svc, frontends, service_ids)
            for svc in new.values()
            if id(svc) not in refused and svc.frontend not in frontends.keys
        }
        rest = [svc for svc in services if id(svc) not in left_out]
        wanted = yield from _wanted(rest)
        undivided, claims = yield from _claims([svc for svc in rest if id(svc) not in whole], new, backend_ids)
        used = _used(wanted, claims)
        backends = grant(claims, backend_ids.capacity, backend_ids.free, used, wanted, left.backends, most)

        def reason(name: ServiceName, missing: Sequence[L3n4Addr], backends: Grants[L3n4Addr] = backends) -> str:
            return _reason(name, missing, backends, backend_ids, most)

        without = {key: missing for key, claim in undivided.items() if (missing := backends.missing(claim))}
        for key, missing in without.items():
            text = reason(new[key].name, missing)
            refused[key] = left_out[key] = IdsExhausted(f"{text}; the new frontend is left out, what is served stays")
        if not without or len(frontends.keys) == len(new):
            break
    return Shares(left, left_out, frontends.keys, backends.keys, reason)


def groups_of(svc: SVC) -> tuple[tuple[Backend, ...], tuple[Backend, ...], tuple[Backend, ...]]:
    """Return the three groups of its backends."""
    return svc.selectable, svc.unselectable, svc.slotless


def lacking(svc: SVC, given: SVC, missing: Sequence[L3n4Addr], shares: Shares) -> IdsExhausted:
    """Return the error of a served frontend (`given`) some of whose backends have no id."""
    count = len(given.selectable)
    goes_on = f"the frontend continues with {count} of {len(svc.selectable)} backends"
    if svc.selectable and not count:
        goes_on = "the frontend refuses new flows until one has an id"
    return IdsExhausted(f"{shares.reason(svc.name, missing)}; {goes_on}")


def _grant_frontends(
    services: Sequence[SVC], new: Container[int], service_ids: Ids, credit: Credit
) -> Grants[L3n4Addr]:
    asking = sorted((svc for svc in services if id(svc) in new), key=id_rank)
    if not asking:
        return Grants(set(), service_ids.free, {}, {})
    wanted = Counter(namespace_of(svc.name) for svc in services if not svc.wildcard)
    used = wanted - Counter(namespace_of(svc.name) for svc in asking)
    claims = [IdClaim(svc.name, (svc.frontend,)) for svc in asking]
    return grant(claims, service_ids.capacity, service_ids.free, used, wanted, credit.frontends)


def _wanted(services: Iterable[SVC]) -> Cooperative[dict[str, int]]:
    """Return how many backends the Services of each namespace refer to."""
    found: dict[str, set[L3n4Addr]] = {}
    seen: set[tuple[str, int]] = set()  # frontends of one port share their groups
    for at, svc in enumerate(services):
        holder = namespace_of(svc.name)
        for group in (svc.selectable, svc.unselectable, svc.slotless):
            if group and (holder, id(group)) not in seen:
                seen.add((holder, id(group)))
                found.setdefault(holder, set()).update([backend.address for backend in group])
        if not at % BETWEEN_YIELDS:
            yield
    return {holder: len(addresses) for holder, addresses in found.items()}


def _used(wanted: Mapping[str, int], claims: Iterable[IdClaim[L3n4Addr]]) -> dict[str, int]:
    """Return how many of these have an id: all without a claim."""
    missing: dict[str, set[L3n4Addr]] = {}
    for claim in claims:
        missing.setdefault(namespace_of(claim.service), set()).update(claim.keys)
    return {holder: number - len(missing.get(holder, ())) for holder, number in wanted.items()}


def _claims(
    services: Iterable[SVC], new: Container[int], backend_ids: Ids
) -> Cooperative[tuple[dict[int, IdClaim[L3n4Addr]], list[IdClaim[L3n4Addr]]]]:
    """Return the claims of new frontends by id(SVC), and all in their order: first for backends with new flows, then the rest."""
    undivided: dict[int, IdClaim[L3n4Addr]] = {}
    first: list[tuple[SVC, IdClaim[L3n4Addr]]] = []
    resting: list[tuple[SVC, IdClaim[L3n4Addr]]] = []
    get = backend_ids.get
    for at, svc in enumerate(services):
        if not at % BETWEEN_YIELDS:
            yield
        chosen, *others = [[each.address for each in group if get(each.address) is None] for group in groups_of(svc)]
        rest = others[0] + others[1]
        if id(svc) in new:
            if chosen or rest:
                undivided[id(svc)] = IdClaim(svc.name, tuple(dict.fromkeys(chosen + rest)), whole=True)
                first.append((svc, undivided[id(svc)]))
            continue
        if chosen:
            first.append((svc, IdClaim(svc.name, tuple(chosen))))
        if rest:
            resting.append((svc, IdClaim(svc.name, tuple(rest))))
    order = [claim for part in (first, resting) for _, claim in sorted(part, key=lambda item: id_rank(item[0]))]
    return undivided, order


# --- messages ---


def _without_service_id(svc: SVC, grants: Grants[L3n4Addr], ids: Ids) -> IdsExhausted:
    text = f"all {ids.capacity} service ids are in use, none is left for {svc.frontend.with_protocol()}"
    if grants.free:
        text = f"{_share(svc.name, grants, ids, 'service ids')}: {svc.frontend.with_protocol()} gets none"
    advice = f"; {ids.advice}" if ids.advice else ""
    return IdsExhausted(f"{text}{advice}; the frontend is left out, what is served stays")


def _reason(name: ServiceName, missing: Sequence[L3n4Addr], grants: Grants[L3n4Addr], ids: Ids, most: int) -> str:
    named = ", ".join(address.with_protocol() for address in missing[:_NAMED])
    if len(missing) > _NAMED:
        named += f" and {len(missing) - _NAMED} more"
    holder = namespace_of(name)
    has, may = grants.counts.get(holder, 0), grants.allowed.get(holder, 0)
    if most and has + len(missing) > most:
        return f"namespace {holder} has {has} backends of {most} (--max-endpoints-per-namespace): no id for {named}"
    advice = f"; {ids.advice}" if ids.advice else ""
    if grants.free < len(missing):
        return f"{ids.capacity - grants.free} of {ids.capacity} backend ids are in use: no id for {named}{advice}"
    return (
        f"{_share(name, grants, ids, 'backend ids')}: no id for {named}{advice}"
        if has + len(missing) > may
        else (f"no id for {named} yet")
    )


def _share(name: ServiceName, grants: Grants[L3n4Addr], ids: Ids, what: str) -> str:
    holder = namespace_of(name)
    return (
        f"namespace {holder} has {grants.counts.get(holder, 0)} of {ids.capacity} {what}, its fair share while more than"
        f" {float(GUARD):.0%} are wanted"
    )
