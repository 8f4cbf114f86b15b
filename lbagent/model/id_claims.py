"""Decides which claims to ids are granted when there are too few ids: by credit, by fair share of the namespaces, by rank. Pure.

A claim is the set of keys without ids that one frontend needs. A key with an id keeps it and is no claim.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from lbagent.model.fair_share import allowed_entries
from lbagent.model.service import SVC, ServiceName, SVCType

Key = TypeVar("Key", bound=Hashable)

# The order in which kinds of frontends get ids. HostPorts are last, as a Service has a frontend before them.
_KINDS = {
    kind: number
    for number, kind in enumerate(
        (
            *(SVCType.CLUSTER_IP, SVCType.NODE_PORT, SVCType.LOAD_BALANCER, SVCType.EXTERNAL_IPS, SVCType.HOST_PORT),
            SVCType.LOCAL_REDIRECT,
        )
    )
}
OPERATORS_OWN = -1.0  # `SVC.created` of the operator's own files: before everything else
_ROUNDS = 8  # each distributes the room of namespaces that cannot use it


def id_rank(svc: SVC) -> tuple[int, bool, float]:
    """Return the sort key of the order in which frontends get ids: kind, then age. Equal ones stay in the order of the State."""
    kind = -1 if svc.created < 0 else _KINDS.get(svc.type, len(_KINDS))
    return kind, not svc.created, svc.created


def namespace_of(name: ServiceName) -> str:
    """Return the namespace that a Service counts for, with the cluster where there is one."""
    return f"{name.cluster}/{name.namespace}" if name.cluster else name.namespace


class IdClaim(Struct, Generic[Key], frozen=True, gc=False):
    """Keys without ids that one frontend needs; `whole`: it can use all of them or none."""

    service: ServiceName
    keys: Sequence[Key]
    whole: bool = False


class Grants(Struct, Generic[Key]):
    """The granted keys, and the reasons for the rest: ids left, entries of each namespace, and how many it may have."""

    keys: set[Key]
    free: int
    counts: dict[str, int]
    allowed: Mapping[str, int]

    def missing(self, claim: IdClaim[Key]) -> list[Key]:
        """Return the keys of a claim that got no id."""
        return [key for key in claim.keys if key not in self.keys]

    def take(self, claim: IdClaim[Key], room: int) -> int:
        """Grant the part that fits into `room`; return the number of granted keys."""
        missing = self.missing(claim)
        number = min(len(missing), room, self.free)
        if number <= 0 or (claim.whole and number < len(missing)):
            return 0
        self.keys.update(missing[:number])
        self.free -= number
        holder = namespace_of(claim.service)
        self.counts[holder] = self.counts.get(holder, 0) + number
        return number


def grant(
    claims: Iterable[IdClaim[Key]],
    capacity: int,
    free: int,
    used: Mapping[str, int],
    wanted: Mapping[str, int],
    credit: dict[ServiceName, int],
    most: int = 0,
) -> Grants[Key]:
    """Grant claims in their order. `free` of `capacity` ids are not in use.

    `used` and `wanted`: the keys with an id, and all keys, of each namespace. `credit`: how many ids a Service released by the
    same change; it gets as many first, whatever its namespace has, and `credit` shrinks. `most`: of each namespace, 0 for no
    limit.
    """
    done: Grants[Key] = Grants(set(), free, dict(used), {})
    waiting, wanted = list(claims), dict(wanted)
    equal = capacity // max(1, len(wanted))
    equal = min(equal, most) if most else equal
    resting = max(0, capacity - free - sum(used.values()))  # of removed keys: free at the next pass
    for claim in waiting if credit else ():
        if due := credit.get(claim.service, 0):
            credit[claim.service] = due - done.take(claim, due)
    for _ in range(_ROUNDS):
        done.allowed = allowed = allowed_entries(capacity, done.counts, wanted, most)
        refused, before = [], done.free
        for claim in waiting:
            holder = namespace_of(claim.service)
            done.take(claim, allowed[holder] - done.counts.get(holder, 0))
            if any(key not in done.keys for key in claim.keys):
                refused.append(claim)
        # A namespace with room that fits none of its claims leaves it to the others, unless resting ids make a claim fit.
        room = {holder: max(allowed[holder], equal) - done.counts.get(holder, 0) for holder in allowed}
        fits_soon = {
            holder
            for claim in refused
            if len(done.missing(claim)) <= min(room[holder := namespace_of(claim.service)], done.free + resting)
        }
        stuck = {namespace_of(claim.service) for claim in refused if room[namespace_of(claim.service)] > 0} - fits_soon
        if not stuck or not done.free:
            break
        # First to those among them that have less than an equal part of the table, in the order of the claims.
        for claim in refused if not fits_soon else ():
            holder = namespace_of(claim.service)
            if holder in stuck:
                done.take(claim, equal - done.counts.get(holder, 0))
        if done.free == before and len(stuck) == len(wanted):
            break
        wanted |= {holder: done.counts.get(holder, 0) for holder in stuck}
        waiting = [claim for claim in refused if namespace_of(claim.service) not in stuck]
    return done
