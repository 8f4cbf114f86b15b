"""The data planes of `--renderer`: which ones have a State in force, what failed, in what they differ from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import Capability, Route
from lbagent.observe.metric import Metric

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from lbagent.api.plane_differences import DifferenceRow, RepairRequest
    from lbagent.sync.runner import TargetRunner


def _differences(runners: Sequence[TargetRunner], renderer: str) -> Coroutine[Any, Any, list[DifferenceRow]]:
    from lbagent.api.plane_differences import differences

    return differences(runners, renderer)


def _repair(runners: Sequence[TargetRunner], wanted: RepairRequest) -> Coroutine[Any, Any, list[DifferenceRow]]:
    from lbagent.api.plane_differences import repair

    return repair(runners, wanted.renderer)


def _difference_count(runner: TargetRunner) -> int:
    return int(getattr(runner.target, "difference_count", 0)) + runner.object_differences


def _selftest_success(runners: Sequence[TargetRunner]) -> float | None:
    from lbagent.targets.data_plane import self_tests

    found = [each for each in self_tests(runner.target for runner in runners) if each.runs]
    return float(not any(each.fault for each in found)) if found else None


METRICS: tuple[Metric[Sequence[TargetRunner]], ...] = (
    Metric(
        "lbagent_renderer_active",
        "gauge",
        "Whether the data plane of --renderer has put a state in force and the last one did not fail.",
        lambda runners: (((x.target.name,), x.target.ready.is_set() and x.failure is None) for x in runners),
        ("renderer",),
    ),
    Metric(
        "lbagent_renderer_errors_total",
        "counter",
        "Attempts of the data plane that failed as a whole; each is repeated.",
        lambda runners: (((x.target.name,), x.failures) for x in runners),
        ("renderer",),
    ),
    Metric(
        "lbagent_renderer_apply_seconds",
        "gauge",
        "Seconds that the data plane took to put the last state in force.",
        lambda runners: (((x.target.name,), x.applied_s) for x in runners),
        ("renderer",),
    ),
    Metric(
        "lbagent_verify_differences",
        "gauge",
        "Differences of the data plane from what was written, and from the objects of a new list, as the last comparisons found.",
        lambda runners: (((x.target.name,), _difference_count(x)) for x in runners),
        ("renderer",),
    ),
    Metric(
        "lbagent_selftest_success",
        "gauge",
        "Whether the last self-test passed: tail calls are as loaded, and packets find their frontends. None with nftables alone.",
        _selftest_success,
    ),
)
CAPABILITY: Capability[Sequence[TargetRunner]] = Capability(
    routes=(
        Route(
            "differences",
            "GET",
            "/v1/differences",
            "lbagent.api.plane_differences:DifferenceRow",
            "in what each data plane differs from what was written, `?renderer=NAME` one of them; empty when nothing differs",
            _differences,
            is_list=True,
            query=(("renderer", ""),),
        ),
        Route(
            "repair",
            "PUT",
            "/v1/repair",
            "lbagent.api.plane_differences:DifferenceRow",
            "has what differs written again; what differed, and whether it is repaired",
            _repair,
            is_list=True,
            body="lbagent.api.plane_differences:RepairRequest",
        ),
    ),
    metrics=METRICS,
)
