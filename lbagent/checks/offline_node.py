"""What a check of `lbagent doctor` that holds for every data plane reads."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class OfflineNode(Struct, frozen=True, kw_only=True):
    """A node before the start."""

    # the data planes of --renderer without checks of their own, and why each cannot be used here ('': it can)
    renderers: Sequence[tuple[str, str]] = ()
    balances: bool = True  # one of them balances packets
    kubernetes: bool = False  # look for leftovers of kube-proxy, too
