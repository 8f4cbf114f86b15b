"""`explain`: what would happen to a packet, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import Capability, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lbagent.api.explain_requests import ExplainRequests
    from lbagent.targets.explanation import ExplainRequest, Explanation


async def _explain(requests: ExplainRequests, request: ExplainRequest) -> Sequence[Explanation]:
    return await requests.explain(request)


CAPABILITY: Capability[ExplainRequests] = Capability(
    routes=(
        Route(
            "explain",
            "PUT",
            "/v1/explain",
            "lbagent.targets.explanation:Explanation",
            "what would happen to packets, and why; nothing is changed. 404 where no data plane is `bpf`",
            _explain,
            is_list=True,
            body="lbagent.targets.explanation:ExplainRequest",
        ),
    ),
    off="no data plane of this agent can explain packets; `--renderer bpf` has one that can",
)
