"""Comparisons with the objects of a new list, which find a watch that stopped silently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import Capability, Route
from lbagent.observe.metric import Metric

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from lbagent.api.object_differences import VerifiedPlanes
    from lbagent.api.plane_differences import DifferenceRow, RepairRequest


def _differences(parts: VerifiedPlanes, renderer: str) -> Coroutine[Any, Any, list[DifferenceRow]]:
    from lbagent.api.object_differences import object_differences

    return object_differences(parts, renderer)


def _repair(parts: VerifiedPlanes, wanted: RepairRequest) -> Coroutine[Any, Any, list[DifferenceRow]]:
    from lbagent.api.object_differences import repair_objects

    return repair_objects(parts, wanted)


METRICS: tuple[Metric[VerifiedPlanes], ...] = (
    Metric(
        "lbagent_verify_last_success_timestamp_seconds",
        "gauge",
        "When the objects of a new list were last compared with the state, seconds since 1970; 0: not yet.",
        lambda x: x.verification.success_shown,
    ),
)
CAPABILITY: Capability[VerifiedPlanes] = Capability(
    routes=(
        Route(
            "object_differences",
            "GET",
            "/v1/object-differences",
            "lbagent.api.plane_differences:DifferenceRow",
            "lists the objects again; in what each data plane differs from them, `?renderer=NAME` one of them",
            _differences,
            is_list=True,
            query=(("renderer", ""),),
        ),
        Route(
            "repair_objects",
            "PUT",
            "/v1/object-repair",
            "lbagent.api.plane_differences:DifferenceRow",
            "the same, and has listed again what a source missed, and written again what differs",
            _repair,
            is_list=True,
            body="lbagent.api.plane_differences:RepairRequest",
        ),
    ),
    metrics=METRICS,
)
