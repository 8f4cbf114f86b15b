"""`python -m tests.oracle`: serve random folders by BPF and by nftables, and print each difference. Exit code 1: there is one."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.oracle import twins
from tests.oracle.folders import Folder, histories
from tests.oracle.judge import Judge
from tests.oracle.twins import Twins

HOOKS = ("tc", "xdp")
LENGTH = 4  # folders of a history


def main() -> int:
    """Run on each hook in turn."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("-n", "--folders", type=int, default=300, help="of all hooks together")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="the same seed, the same folders")
    parser.add_argument("--attach", action="append", choices=HOOKS)
    options = parser.parse_args()
    hooks, differing = options.attach or HOOKS, 0
    print(f"SEED={options.seed}", flush=True)
    for hook in hooks:
        with twins.made(hook) as both:
            differing += _run(both, hook, max(1, options.folders // len(hooks) // LENGTH), options.seed)
    return 1 if differing else 0


def _run(both: Twins, hook: str, count: int, number: int) -> int:
    """Serve `count` histories; return how many folders differ."""
    served = differing = 0

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(history=histories(LENGTH))
    def serve(history: Sequence[Folder]) -> None:
        nonlocal served, differing
        judge = Judge(both)
        for folder in history:
            both.serve(folder)
            found = judge.differences(folder)
            served += 1
            if found:
                differing += 1
                print("\n".join((f"{hook}: {folder}", *(f"    {line}" for line in found))), flush=True)
        judge.close()

    serve()
    print(f"{hook}: {served} folders, {differing} of them differ", flush=True)
    return differing


if __name__ == "__main__":
    sys.exit(main())
