"""Decides which Service gets a frontend that several claim: first by the kind of claim, then by age.

Kinds: ClusterIP and NodePort (and the bind address of a pool, which is this host's own), then LoadBalancer ingress, then
externalIPs: a user who may write a Service can claim any address by externalIPs, so these never take another Service's frontend.
Age is the creationTimestamp, then namespace/name decides. Where one of the two has none, the Service that is served keeps the
frontend; the first decision about a frontend takes those with a creationTimestamp first, then namespace/name.

A pass is `update` for each changed Service, then `decide`. The order of the updates does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec import Struct

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.message import Message
from lbagent.model.service import SVCType
from lbagent.objects.records import Service
from lbagent.resolve.frontends import WantedFrontend

RANKS = {
    SVCType.CLUSTER_IP: 0,
    SVCType.NODE_PORT: 0,
    SVCType.HOST_PORT: 0,  # of a Service: `Service.binds`. HostPorts of Pods come after all Services (host_ports.py)
    SVCType.LOAD_BALANCER: 1,
    SVCType.EXTERNAL_IPS: 2,
}
_KIND_TEXTS = {
    SVCType.CLUSTER_IP: "ClusterIP",
    SVCType.NODE_PORT: "NodePort",
    SVCType.HOST_PORT: "bind address",
    SVCType.LOAD_BALANCER: "LoadBalancer address",
    SVCType.EXTERNAL_IPS: "externalIP",
}
OwnerOf = Callable[[L3n4Addr], str | None]  # key of the Service that has a frontend


class FrontendClaim(NamedTuple):
    """The kind and rank of a Service's claim to frontends. The smaller claim takes precedence."""

    rank: int
    is_undated: bool  # no creationTimestamp
    created: float
    namespace: str
    name: str
    type: SVCType

    @classmethod
    def of(cls, service: Service, kind: SVCType) -> FrontendClaim:
        """Return the claim of a Service to its frontends of a kind."""
        return cls(RANKS[kind], not service.created, service.created, service.namespace, service.name, kind)

    @property
    def key(self) -> str:
        """The key of the Service."""
        return f"{self.namespace}/{self.name}"

    def reason_against(self, loser: FrontendClaim) -> str:
        """Return why this claim has a frontend and not the other one, as the end of a sentence about the frontend."""
        winner = f"Service {self.key}"
        if self.rank != loser.rank:
            return f"held by {winner} as its {_KIND_TEXTS[self.type]}: it precedes any {_KIND_TEXTS[loser.type]}"
        if self.is_undated or loser.is_undated:
            return f"served by {winner} (not both have a creationTimestamp to compare)"
        if self.created != loser.created:
            return f"held by the older {winner}"
        return f"held by {winner}, which is of the same age and the first by namespace/name"


class Contest(Struct, frozen=True, gc=False):
    """A frontend that one Service claims and another one has. Further frontends of the same field are not listed."""

    frontend: L3n4Addr
    loser: str  # key of a Service
    winner: str
    message: Message


_Place = tuple[bytes, L4Type]
_FrontendClaims = tuple[tuple[FrontendClaim, tuple[L3n4Addr, ...]], ...]  # of one Service, by kind


class OwnedFrontends(NamedTuple):
    """The owner of each frontend, at one moment."""

    claims: dict[str, _FrontendClaims]
    contested: dict[L3n4Addr, str]  # owner of each of these

    def by_service(self) -> dict[str, list[str]]:
        """Return the frontends of each Service without a creationTimestamp: those that depend on the previous owner."""
        found = {}
        for key, claims in self.claims.items():
            if claims[0][0].is_undated:
                frontends = (each for _, group in claims for each in group if self.contested.get(each, key) == key)
                found[key] = [each.with_protocol() for each in frontends]
        return found


def _nothing_served(_frontend: L3n4Addr) -> str | None:
    return None


class Ownership:
    """The frontends that Services claim; most are claimed by one."""

    def __init__(self) -> None:
        self.version = 0  # counts the changes of what `owned` returns
        self._previous_owner: OwnerOf = _nothing_served
        self._is_first_pass = True
        self._claims: dict[str, _FrontendClaims] = {}  # by service key
        self._owner: dict[L3n4Addr, FrontendClaim] = {}  # the only claim, or the one that won
        self._contested: dict[L3n4Addr, dict[str, FrontendClaim]] = {}  # every claim to it, by service key
        # of one pass:
        self._new: set[L3n4Addr] = set()  # frontends that no Service claimed before
        self._undecided: dict[L3n4Addr, FrontendClaim | None] = {}  # contested frontends -> their previous owner
        self._ranges: dict[_Place, set[L3n4Addr]] = {}  # frontends with ranges of ports, by address and protocol
        self._changed_ranges: set[_Place] = set()

    def set_previous_owner(self, previous_owner: OwnerOf) -> None:
        """Set the previous owner of each frontend; it counts for the first pass."""
        self._previous_owner = previous_owner

    def owner(self, frontend: L3n4Addr) -> str | None:
        """Return the key of the Service that has the frontend; before the first decision, of its previous owner."""
        claim = self._owner.get(frontend)
        if claim is not None:
            return claim.key
        return self._previous_owner(frontend) if self._is_first_pass else None

    def winning_claim(self, frontend: L3n4Addr) -> FrontendClaim | None:
        """Return the claim that has the frontend; of a range of ports the one that has a range with some of its ports."""
        claim = self._owner.get(frontend)
        if not frontend.last_port or claim is None:
            return claim
        served: list[L3n4Addr] = []
        mine = sorted(self._ranges.get(_place(frontend), ()), key=lambda each: (self._owner[each], each.sort_key))
        for each in mine:
            before = next((one for one in served if one.overlaps(each)), None)
            if each == frontend:
                return claim if before is None else self._owner[before]
            if before is None:
                served.append(each)
        return claim

    def owned(self) -> OwnedFrontends:
        """Return the previous owners that matter, quickly: they are computed later, also in another thread."""
        contested = {frontend: self._owner[frontend].key for frontend in self._contested}
        return OwnedFrontends(dict(self._claims), contested)

    def update(self, key: str, service: Service | None, wanted: Iterable[WantedFrontend]) -> None:
        """Replace what a Service claims."""
        old = self._claims.get(key, ())
        new = _claims_of(service, wanted) if service else ()
        if new == old:
            return
        if any(claims and claims[0][0].is_undated for claims in (old, new)):
            self.version += 1
        kept = {frontend for _, frontends in new for frontend in frontends} if old else frozenset()
        for _, frontends in old:
            for frontend in frontends:
                if frontend not in kept:
                    self._leave(frontend, key)
        for claim, frontends in new:
            for frontend in frontends:
                self._enter(frontend, key, claim)
        if new:
            self._claims[key] = new
        else:
            self._claims.pop(key, None)

    def _leave(self, frontend: L3n4Addr, key: str) -> None:
        rivals = self._contested.get(frontend)
        if frontend.last_port:
            self._changed_ranges.add(_place(frontend))
        if rivals is None:
            del self._owner[frontend]
            self._forget_range(frontend)
            return
        self._note(frontend)
        del rivals[key]

    def _enter(self, frontend: L3n4Addr, key: str, claim: FrontendClaim) -> None:
        holder = self._owner.get(frontend)
        rivals = self._contested.get(frontend)
        if frontend.last_port:
            self._ranges.setdefault(_place(frontend), set()).add(frontend)
            self._changed_ranges.add(_place(frontend))
        if rivals is None:
            if holder is None:
                self._owner[frontend] = claim
                if not self._is_first_pass:
                    self._new.add(frontend)
                return
            if holder.key == key:
                self._owner[frontend] = claim
                return
            rivals = self._contested[frontend] = {holder.key: holder}
        self._note(frontend)
        rivals[key] = claim

    def _forget_range(self, frontend: L3n4Addr) -> None:
        if frontend.last_port and (mine := self._ranges.get(_place(frontend))):
            mine.discard(frontend)
            if not mine:
                del self._ranges[_place(frontend)]

    def _note(self, frontend: L3n4Addr) -> None:
        """Mark the frontend to be decided, with its owner before this pass."""
        if frontend not in self._undecided:
            is_new = self._is_first_pass or frontend in self._new
            self._undecided[frontend] = None if is_new else self._owner[frontend]

    def decide(self) -> set[str]:
        """Decide on the updates of this pass; return the Services whose frontends or messages change."""
        changed: set[str] = set()
        for frontend, before in self._undecided.items():
            rivals = self._contested[frontend]
            if len(rivals) < 2:
                del self._contested[frontend]
            if not rivals:
                del self._owner[frontend]
                self._forget_range(frontend)
                continue
            served = before.key if before else self._previous_owner(frontend) if self._is_first_pass else None
            winner = self._owner[frontend] = _winner(rivals.values(), rivals.get(served or ""))
            if winner != before:
                changed.update(rivals)
                self.version += 1
        for place in self._changed_ranges:
            changed.update(self._owner[each].key for each in self._ranges.get(place, ()))
        self._changed_ranges = set()
        self._undecided, self._new = {}, set()
        self._is_first_pass, self._previous_owner = False, _nothing_served
        return changed


def _place(frontend: L3n4Addr) -> _Place:
    return frontend.address, frontend.protocol


def _winner(claims: Iterable[FrontendClaim], served: FrontendClaim | None) -> FrontendClaim:
    """Return the winning claim; `served` is that of the Service which has the frontend, if it still claims it."""
    best = min(claims)
    return served if served is not None and served.rank == best.rank and served.is_undated else best


def _claims_of(service: Service, wanted: Iterable[WantedFrontend]) -> _FrontendClaims:
    by_kind: dict[SVCType, list[L3n4Addr]] = {}
    for want in wanted:
        by_kind.setdefault(want.type, []).append(want.frontend)
    return tuple((FrontendClaim.of(service, kind), tuple(frontends)) for kind, frontends in by_kind.items())
