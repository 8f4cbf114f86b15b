"""The rows, each on its own machines: lbagent's first, then MetalLB's, with one API server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cloud import many, metallb_nodes
from bench.cloud.announced import Lbagent
from bench.cloud.gaps import Gaps
from bench.cloud.metallb_nodes import MetalLB
from bench.cloud.routed import routed
from bench.cloud.stage import POOL, BenchPlane, Lan, control_plane
from lbagent.announce.bgp.bird_process import NoBird, find_program
from tests.kube_api.programs import BuildFailed, Missing, build_programs
from tests.lab import netns
from tests.lab.netns import LabError

ROWS = ("l2-cable", "l2-node", "cordon", "stop", "kill", "bgp-cable", "many")
BESIDE = ("l2-cable", "l2-node")  # gaps that are also measured for MetalLB
GAPS = {"l2-cable": "cable", "l2-node": "node", "cordon": "cordon", "stop": "stop", "kill": "kill"}
FEW = 4  # a trial that takes a minute, or one whose outcome is yes or no, is made a quarter as often
OFTEN = ("l2-cable", "l2-node", "bgp-cable")
RESTART_S = 15.0
Say = Callable[[str], object]


@dataclass(frozen=True)
class Amount:
    """Which rows, and how much of everything."""

    rows: tuple[str, ...] = ROWS
    times: int = 20
    services: int = 1000
    peace_s: float = many.PEACE_S
    restart_s: float = RESTART_S

    def trials(self, row: str) -> int:
        """Return how often a row's trial is made."""
        return self.times if row in OFTEN else max(1, self.times // FEW)


def measure(amount: Amount, *, metallb: bool = True, say: Say = print) -> dict[str, Any]:
    """Measure; rows that cannot be measured here are listed under `missing`."""
    out: dict[str, Any] = {"rows": {row: {} for row in amount.rows}, "missing": []}
    netns.sweep()
    try:
        programs = build_programs(say)
        built = metallb_nodes.build(say) if metallb else None
    except (Missing, BuildFailed) as error:
        out["missing"].append(str(error))
        return out
    if built is None:
        out["missing"].append("MetalLB")
    with tempfile.TemporaryDirectory(prefix=f"{netns.FOLDER}{os.getpid()}-") as name:
        folder = Path(name)
        with control_plane(programs, folder) as plane:
            for side in ("lbagent", "MetalLB") if built else ("lbagent",):
                _side(side, plane, folder, built, amount, out, say)
            if "bgp-cable" in amount.rows:
                _bgp(plane, folder, amount, out, say)
    return out


def _side(
    side: str, plane: BenchPlane, folder: Path, built: Path | None, amount: Amount, out: dict[str, Any], say: Say
) -> None:
    """Measure one of the two: the gaps, then many Services."""
    wanted = [row for row in amount.rows if row in GAPS and (side == "lbagent" or row in BESIDE)]
    if not wanted and "many" not in amount.rows:
        return
    rows = out["rows"]
    with Lan(plane, "l-" if built is None or side == "lbagent" else "m-") as lan:
        system = Lbagent(lan, folder) if built is None or side == "lbagent" else MetalLB(lan, folder, built)
        system.start()
        if wanted:
            gaps = Gaps(system)
            for row in wanted:
                trial = getattr(gaps, GAPS[row])
                rows[row][side] = _trials(trial, amount.trials(row), f"{side} {row}", out["missing"], say)
            gaps.close()
        if "many" in amount.rows:
            try:
                rows["many"][side] = _many(system, amount)
                say(f"  {side} many: {rows['many'][side]}")
            except LabError as error:
                out["missing"].append(f"{side} many: {error}")
            many.remove(lan)


def _many(system: Lbagent | MetalLB, amount: Amount) -> dict[str, Any]:
    found = many.measure(system, many.expand(POOL)[: amount.services], peace_s=amount.peace_s)
    if isinstance(system, Lbagent):
        found["restart_writes"] = many.restart(system, amount.restart_s)
    return found


def _bgp(plane: BenchPlane, folder: Path, amount: Amount, out: dict[str, Any], say: Say) -> None:
    try:
        find_program()
    except NoBird as error:
        out["missing"].append(str(error))
        return
    with Lan(plane, "b-") as lan, routed(lan, folder) as gaps:
        name, count = "bgp-cable", amount.trials("bgp-cable")
        out["rows"][name]["lbagent"] = _trials(gaps.cable, count, f"lbagent {name}", out["missing"], say)


def _trials(
    trial: Callable[[], dict[str, float]], count: int, name: str, missing: list[str], say: Say
) -> list[dict[str, float]]:
    """Make a row's trials; a failed trial ends the row, and is reported."""
    found: list[dict[str, float]] = []
    for _ in range(count):
        try:
            one = trial()
        except LabError as error:
            missing.append(f"{name}, after {len(found)} of {count} times: {error}")
            say(f"  {missing[-1]}")
            break
        say(f"  {name}: {one['gap_s']:.3f} s, {one['failures']} failed, {one['syns_again']} SYNs again")
        found.append(one)
    return found
