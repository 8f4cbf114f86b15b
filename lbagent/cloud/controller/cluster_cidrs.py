"""The ranges of the cluster's pods, as --cluster-cidr has them."""

from __future__ import annotations

import ipaddress

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_cluster_cidrs(text: str) -> tuple[Network, ...]:
    """Parse `CIDR[,CIDR]`, the ranges of the cluster's pods; '' is none. Raises ValueError."""
    return tuple(ipaddress.ip_network(each.strip()) for each in text.split(",")) if text else ()
