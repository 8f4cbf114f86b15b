"""A Service's request for addresses of pools, and its allocation."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from lbagent.model.address import L4Type, parse_ip
from lbagent.model.family import Family
from lbagent.objects.decode.annotation_words import (
    ADDRESS_POOL,
    ALLOCATED_FROM,
    ALLOW_SHARED_IP,
    LOAD_BALANCER_IPS,
    OURS,
)

POOL_ANNOTATION = OURS + ALLOCATED_FROM
# lbagent's wins. Source: MetalLB's website ("usage"), before and after its change of group; kube-vip's "kubernetes services".
_ADDRESS_WORDS = (
    OURS + LOAD_BALANCER_IPS,
    "metallb.io/loadBalancerIPs",
    "metallb.universe.tf/loadBalancerIPs",
    "kube-vip.io/loadbalancerIPs",
)
_POOL_WORDS = (OURS + ADDRESS_POOL, "metallb.io/address-pool", "metallb.universe.tf/address-pool")
_SHARE_WORDS = (OURS + ALLOW_SHARED_IP, "metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip")


class AddressPreference(Struct, frozen=True, gc=False):
    """The request in the annotations of a Service. `problem`: they are invalid, so the Service gets no address."""

    addresses: tuple[bytes, ...] = ()
    pool: str = ""
    sharing_key: str = ""
    problem: str = ""


class AddressRequest(Struct, frozen=True, gc=False):
    """A Service that needs an address of each of its families; `require_all`: of all of them or of none (RequireDualStack).

    `held` are the addresses in its status. `pods` is the selector, as a text, of the pods of its external traffic policy Local;
    '' with policy Cluster. `created` is seconds since 1970, 0 = unknown: the youngest.
    """

    namespace: str
    name: str
    created: float = 0.0
    families: tuple[Family, ...] = (Family.IPV4,)
    require_all: bool = False
    labels: Mapping[str, str] = {}
    ports: frozenset[tuple[L4Type, int]] = frozenset()
    pods: str = ""
    preference: AddressPreference = AddressPreference()
    held: tuple[bytes, ...] = ()

    @property
    def key(self) -> str:
        """Namespace and name in one text."""
        return f"{self.namespace}/{self.name}"

    @property
    def order(self) -> tuple[float, str]:
        """The order of allocation: the oldest first, then by namespace and name."""
        return (self.created or float("inf"), self.key)

    def shares_with(self, other: AddressRequest) -> bool:
        """Return whether both may have one address: the same key, no common port, and the same pods."""
        mine, theirs = self.preference.sharing_key, other.preference.sharing_key
        return bool(mine) and mine == theirs and self.pods == other.pods and self.ports.isdisjoint(other.ports)


class Allocation(Struct, frozen=True, gc=False):
    """The allocation of a Service: addresses in the order of its families, and their pools (names separated by commas).

    `problem` is why it lacks a requested address; `astray` are addresses that it keeps although no pool has them.
    """

    addresses: tuple[bytes, ...] = ()
    pool: str = ""
    problem: str = ""
    astray: tuple[bytes, ...] = ()


def read_preference(annotations: Mapping[str, str], load_balancer_ip: str = "") -> AddressPreference:
    """Return the request in annotations and spec.loadBalancerIP; annotations win, lbagent's before others."""
    word, text = _first(annotations, _ADDRESS_WORDS)
    if not text:
        word, text = "spec.loadBalancerIP", load_balancer_ip
    found: dict[bytes, None] = {}
    problem = ""
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            found[parse_ip(part)] = None
        except ValueError as error:
            problem = f"{word}: {error}"
    if not problem and len({len(address) for address in found}) < len(found):
        problem = f"{word}: {text!r} has two addresses of one IP family"
    return AddressPreference(
        tuple(found), _first(annotations, _POOL_WORDS)[1], _first(annotations, _SHARE_WORDS)[1], problem
    )


def _first(annotations: Mapping[str, str], words: tuple[str, ...]) -> tuple[str, str]:
    """Return the first existing annotation, and its stripped text."""
    return next(((word, text) for word in words if (text := annotations.get(word, "").strip())), ("", ""))
