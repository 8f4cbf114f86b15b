"""Whether the data planes of --renderer can be used here. A data plane with checks of its own reports it by them."""

from __future__ import annotations

from collections.abc import Iterator

from lbagent.checks.offline_node import OfflineNode
from lbagent.errors import Unsupported
from lbagent.model.check import Check, Level, Result, When


def renderer_unavailable(node: OfflineNode) -> Iterator[Result]:
    """Report each data plane without checks of its own."""
    for name, reason in node.renderers:
        level = Level.ERROR if reason else Level.OK
        yield Result(name, {"name": name, "reason": reason}, level=level, exit_code=Unsupported.exit_code)


CHECKS = (
    Check(
        "renderer-unavailable",
        "whether the data planes of `--renderer` can be used here",
        renderer_unavailable,
        "--renderer {name} is not available: {reason}",
        "`lbagent renderers` lists those that are",
        good="data plane {name}: it can be used here",
        when=When.OFFLINE,
        level=Level.ERROR,
    ),
)
