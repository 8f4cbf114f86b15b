"""`shadow report`: where lbagent would decide otherwise than the proxy of the node (`agent --shadow`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import Capability, Route
from lbagent.observe.metric import Metric

if TYPE_CHECKING:
    from lbagent.api.shadow_reset import ShadowReset
    from lbagent.targets.comparison.compared_flows import ComparedFlows, ShadowReport

RESULTS = ("same", "differs", "unknown")


def _reset(compared: ComparedFlows, wanted: ShadowReset) -> ShadowReport:
    report = compared.report()
    if wanted.reset:
        compared.reset()
    return report


CAPABILITY: Capability[ComparedFlows] = Capability(
    routes=(
        Route(
            "shadow",
            "GET",
            "/v1/shadow",
            "lbagent.targets.comparison.compared_flows:ShadowReport",
            "new connections to frontends, and which of them lbagent would have sent elsewhere; 404 without `--shadow`",
            lambda compared: compared.report(),
        ),
        Route(
            "reset_shadow",
            "PUT",
            "/v1/shadow/reset",
            "lbagent.targets.comparison.compared_flows:ShadowReport",
            "the same; counts begin again",
            _reset,
            body="lbagent.api.shadow_reset:ShadowReset",
        ),
    ),
    metrics=(
        Metric(
            "lbagent_shadow_flows_total",
            "counter",
            "New connections to frontends beside --shadow, by whether the backend is one that the State has for this client.",
            lambda compared: (((result,), compared.totals[result]) for result in RESULTS),
            ("result",),
        ),
    ),
    off="this agent compares nothing: it was started without --shadow",
)
