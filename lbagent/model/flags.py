"""ServiceFlags: the 16 bits of a service entry <-> fields <-> text.

Low byte = `flags`, high byte = `flags2`. Bit values and texts: cilium pkg/loadbalancer (behaviour), bits 0-13 as in 1.13,
bits 14 (deny) and 15 (dsr) as in the newer releases.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Self

from msgspec import Struct

from lbagent.model.kinds import SVCNatPolicy, SVCTrafficPolicy, SVCType

if TYPE_CHECKING:
    from lbagent.model.address import L3n4Addr


class _TypeAndNat(Struct, frozen=True, gc=False):
    """The fields of a SvcFlagParam that are allowed as positional arguments."""

    svc_type: SVCType = SVCType.CLUSTER_IP
    svc_nat_policy: SVCNatPolicy = SVCNatPolicy.NONE


class SvcFlagParam(_TypeAndNat, frozen=True, gc=False, kw_only=True):
    """The inputs of the flags."""

    svc_ext_local: bool = False
    svc_int_local: bool = False
    session_affinity: bool = False
    is_routable: bool = False
    check_source_range: bool = False
    l7_load_balancer: bool = False
    loopback_hostport: bool = False
    source_range_deny: bool = False  # the ranges exclude clients
    forwarding_dsr: bool = False
    # None: the seed's own rule, "the two policies differ and it is not a ClusterIP"; resolve computes whether the sets differ
    two_scopes: bool | None = None


_DENY = 0x4000


class ServiceFlags(int):
    """An immutable set of flags; an int, so that it packs and compares as one. Raises ValueError beyond 16 bits."""

    EXTERNAL_IPS: ClassVar[int] = 0x0001
    NODE_PORT: ClassVar[int] = 0x0002
    EXT_LOCAL_SCOPE: ClassVar[int] = 0x0004
    HOST_PORT: ClassVar[int] = 0x0008
    SESSION_AFFINITY: ClassVar[int] = 0x0010
    LOAD_BALANCER: ClassVar[int] = 0x0020
    ROUTABLE: ClassVar[int] = 0x0040
    SOURCE_RANGE: ClassVar[int] = 0x0080
    LOCAL_REDIRECT: ClassVar[int] = 0x0100
    NAT46X64: ClassVar[int] = 0x0200
    L7_LOAD_BALANCER: ClassVar[int] = 0x0400
    LOOPBACK: ClassVar[int] = 0x0800
    INT_LOCAL_SCOPE: ClassVar[int] = 0x1000
    TWO_SCOPES: ClassVar[int] = 0x2000
    SOURCE_RANGE_DENY: ClassVar[int] = _DENY
    FORWARDING_DSR: ClassVar[int] = 0x8000

    def __new__(cls, value: int = 0) -> Self:
        """Check the range: the map would silently cut off more bits."""
        if not 0 <= value <= 0xFFFF:
            raise ValueError(f"service flags {value:#x} do not fit 16 bits")
        return super().__new__(cls, value)

    @classmethod
    @lru_cache(maxsize=1024)
    def from_param(cls, param: SvcFlagParam) -> Self:
        """Return the flags of a frontend. ClusterIP and NONE set no type bit; Nat46 and Nat64 set the same one.

        Equal ones are one object: 30,000 frontends have only a few.
        """
        can_be_loopback = param.svc_type in (SVCType.HOST_PORT, SVCType.LOCAL_REDIRECT)
        two_scopes = param.two_scopes
        if two_scopes is None:
            two_scopes = param.svc_ext_local != param.svc_int_local and param.svc_type != SVCType.CLUSTER_IP
        value = _TYPE_BITS.get(param.svc_type, 0)
        for wanted, bit in (
            (param.svc_nat_policy != SVCNatPolicy.NONE, cls.NAT46X64),
            (param.svc_ext_local, cls.EXT_LOCAL_SCOPE),
            (param.svc_int_local, cls.INT_LOCAL_SCOPE),
            (two_scopes, cls.TWO_SCOPES),
            (param.session_affinity, cls.SESSION_AFFINITY),
            (param.is_routable, cls.ROUTABLE),
            (param.check_source_range, cls.SOURCE_RANGE),
            (param.check_source_range and param.source_range_deny, cls.SOURCE_RANGE_DENY),
            (param.l7_load_balancer, cls.L7_LOAD_BALANCER),
            (param.loopback_hostport and can_be_loopback, cls.LOOPBACK),
            (param.forwarding_dsr, cls.FORWARDING_DSR),
        ):
            if wanted:
                value |= bit
        return cls(value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of `str()`, words joined by ", " or by "+" as in the dump. Raises ValueError.

        No type word is ClusterIP; `non-routable` clears the bit that is otherwise set.
        """
        value = cls.ROUTABLE
        for word in filter(None, (part.strip() for part in text.replace("+", ",").split(","))):
            if word == "non-routable":
                value &= ~cls.ROUTABLE
            elif word in _WORDS:
                value |= _WORDS[word]
            else:
                raise ValueError(f"unknown service flag {word!r} in {text!r}")
        return cls(value)

    def words(self) -> list[str]:
        """Return the words of the flags in Cilium's order, the type first."""
        out = [self.svc_type().value]
        for bit, word in _TEXTS:
            if bit == self.ROUTABLE:
                if not self & bit:
                    out.append(word)
            elif self & bit:
                out.append(word)
        if self & _DENY:  # the same bit means quarantined where no source range is checked
            at = out.index("check source-range") + 1 if self & self.SOURCE_RANGE else len(out)
            out.insert(at, "deny" if self & self.SOURCE_RANGE else "quarantined")
        if self & self.FORWARDING_DSR:
            out.append("dsr")
        return out

    def __str__(self) -> str:
        """Return the words joined by ", "."""
        return ", ".join(self.words())

    def __repr__(self) -> str:
        """Show bits and words."""
        return f"ServiceFlags({int(self):#06x}: {self})"

    @property
    def dump_text(self) -> str:
        """The words joined by "+", as FLAGS= of `map dump`."""
        return "+".join(self.words())

    def svc_type(self) -> SVCType:
        """Return the type; with several type bits ExternalIPs > NodePort > LoadBalancer > HostPort > LocalRedirect."""
        for kind, bit in _TYPE_BITS.items():
            if self & bit:
                return kind
        return SVCType.CLUSTER_IP

    def ext_traffic_policy(self) -> SVCTrafficPolicy:
        """Return the policy for sources outside the node."""
        return SVCTrafficPolicy.LOCAL if self & self.EXT_LOCAL_SCOPE else SVCTrafficPolicy.CLUSTER

    def int_traffic_policy(self) -> SVCTrafficPolicy:
        """Return the policy for pods and the node."""
        return SVCTrafficPolicy.LOCAL if self & self.INT_LOCAL_SCOPE else SVCTrafficPolicy.CLUSTER

    def nat_policy(self, frontend: L3n4Addr) -> SVCNatPolicy:
        """Return the NAT policy: one bit for both directions, so the frontend's family decides."""
        if not self & self.NAT46X64:
            return SVCNatPolicy.NONE
        return SVCNatPolicy.NAT64 if frontend.is_ipv6 else SVCNatPolicy.NAT46

    def is_l7lb(self) -> bool:
        """Return whether an L7 proxy takes the flows."""
        return bool(self & self.L7_LOAD_BALANCER)


# In decoding order.
_TYPE_BITS = {
    SVCType.EXTERNAL_IPS: ServiceFlags.EXTERNAL_IPS,
    SVCType.NODE_PORT: ServiceFlags.NODE_PORT,
    SVCType.LOAD_BALANCER: ServiceFlags.LOAD_BALANCER,
    SVCType.HOST_PORT: ServiceFlags.HOST_PORT,
    SVCType.LOCAL_REDIRECT: ServiceFlags.LOCAL_REDIRECT,
}
# In printing order, after the type.
_TEXTS = (
    (ServiceFlags.EXT_LOCAL_SCOPE, "Local"),
    (ServiceFlags.INT_LOCAL_SCOPE, "InternalLocal"),
    (ServiceFlags.TWO_SCOPES, "two-scopes"),
    (ServiceFlags.SESSION_AFFINITY, "sessionAffinity"),
    (ServiceFlags.ROUTABLE, "non-routable"),  # printed when the bit is clear
    (ServiceFlags.SOURCE_RANGE, "check source-range"),
    (ServiceFlags.NAT46X64, "46x64"),
    (ServiceFlags.L7_LOAD_BALANCER, "l7-load-balancer"),
    (ServiceFlags.LOOPBACK, "loopback"),
)
_WORDS = {
    **{word: bit for bit, word in _TEXTS if bit != ServiceFlags.ROUTABLE},
    **{kind.value: bit for kind, bit in _TYPE_BITS.items()},
    SVCType.CLUSTER_IP.value: 0,
    "deny": _DENY,
    "quarantined": _DENY,
    "dsr": ServiceFlags.FORWARDING_DSR,
}
