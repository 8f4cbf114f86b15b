"""Random folders, served by both sides one after another: what differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.oracle.folders import Folder, histories
from tests.oracle.judge import Design, Judge
from tests.oracle.twins import Twins

LENGTH = 4  # folders of a history


def serve_folders(
    twins: Twins,
    least: int,
    number: int,
    report: Callable[[Folder, list[str]], None],
    *,
    design: Design | None = None,
    as_served: Callable[[Folder], Folder] = lambda folder: folder,
) -> int:
    """Serve histories of at least so many folders in all, and report each folder in which the sides differ. Return how many were served.

    The same `number` gives the same folders. `as_served` leaves out of a folder what one of the sides does not have.
    """
    served = 0

    @seed(number)
    @settings(
        max_examples=-(-least // LENGTH),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(history=histories(LENGTH))
    def serve(history: Sequence[Folder]) -> None:
        nonlocal served
        judge = Judge(twins, design)
        for folder in map(as_served, history):
            twins.serve(folder)
            if found := judge.differences(folder):
                report(folder, found)
            served += 1
        judge.close()

    serve()
    return served
