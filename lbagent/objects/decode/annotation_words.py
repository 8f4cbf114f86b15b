"""The annotations by which a Service requests addresses of pools: read by pools/, checked for misspellings here."""

from __future__ import annotations

OURS = "lbagent.io/"  # prefix of each annotation and label of lbagent
LOAD_BALANCER_IPS = "load-balancer-ips"
ADDRESS_POOL = "address-pool"
ALLOW_SHARED_IP = "allow-shared-ip"
ALLOCATED_FROM = "allocated-from"  # written by lbagent: the pool of the addresses
OF_POOLS = frozenset((LOAD_BALANCER_IPS, ADDRESS_POOL, ALLOW_SHARED_IP, ALLOCATED_FROM))
