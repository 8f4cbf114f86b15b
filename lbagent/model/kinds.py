"""The closed word lists of a service: type, traffic and NAT policies, selection algorithm. Re-exported by service.py."""

from __future__ import annotations

from enum import StrEnum


class SVCType(StrEnum):
    """The kind of a frontend entry."""

    NONE = "NONE"
    HOST_PORT = "HostPort"
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    EXTERNAL_IPS = "ExternalIPs"
    LOAD_BALANCER = "LoadBalancer"
    LOCAL_REDIRECT = "LocalRedirect"

    __hash__ = str.__hash__


class SVCTrafficPolicy(StrEnum):
    """The backends to select from: all of the cluster or those of this node."""

    NONE = "NONE"
    CLUSTER = "Cluster"
    LOCAL = "Local"

    __hash__ = str.__hash__


class SVCNatPolicy(StrEnum):
    """Whether backends are of the other family."""

    NONE = "NONE"
    NAT46 = "Nat46"
    NAT64 = "Nat64"

    __hash__ = str.__hash__


class Algorithm(StrEnum):
    """How a backend is selected for a new flow: the word of `lbagent.io/algorithm` and of LBALG in the dump."""

    RANDOM = "random"
    MAGLEV = "maglev"
    LEAST_CONN = "least-conn"

    __hash__ = str.__hash__

    @property
    def number(self) -> int:
        """The top 8 bits of a master entry's u32. 1 and 2 are Cilium's, 3 is lbagent's."""
        return _ALGORITHMS.index(self) + 1

    @classmethod
    def from_number(cls, number: int) -> Algorithm:
        """Return the algorithm of a master entry's top 8 bits; 0 (undefined) is random. Raises ValueError."""
        if number == 0:
            return cls.RANDOM
        if number > len(_ALGORITHMS):
            raise ValueError(f"unknown algorithm number {number}")
        return _ALGORITHMS[number - 1]


_ALGORITHMS = (Algorithm.RANDOM, Algorithm.MAGLEV, Algorithm.LEAST_CONN)
