"""Which node leads for an address: rendezvous hashing, so that a node that joins or leaves moves only its own share. Pure.

Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection


def preferred_node(address: bytes, nodes: Collection[str]) -> str:
    """Return the leader among these nodes; '' if there are none. Nodes with the same list agree."""
    return max(nodes, key=lambda node: (_score(address, node), node), default="")


def _score(address: bytes, node: str) -> bytes:
    return hashlib.blake2b(address, digest_size=8, key=_key(node)).digest()


@functools.lru_cache(maxsize=4096)
def _key(node: str) -> bytes:
    return hashlib.blake2b(node.encode(), digest_size=32).digest()
