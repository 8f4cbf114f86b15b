"""`python -m tests.chaos [--seed N] [--seconds S] [--attach xdp|tc]...`: the chaos run. Exit code 1 if a client had a fault."""

from __future__ import annotations

import argparse
import random
import sys

from tests.chaos.run import run
from tests.e2e.conftest import opened

HOOKS = ("xdp", "tc")


def main() -> int:
    """Run on each hook in turn."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="the same seed, the same events")
    parser.add_argument("--seconds", type=float, default=600.0, help="of all hooks together")
    parser.add_argument("--attach", action="append", choices=HOOKS)
    options = parser.parse_args()
    hooks, faults = options.attach or HOOKS, 0
    print(f"SEED={options.seed}", flush=True)
    for hook in hooks:
        with opened(hook) as cluster:
            result = run(cluster, options.seed, options.seconds / len(hooks), lambda text: print(text, flush=True))
        print(result.text(), flush=True)
        faults += result.exchanges["faults"]
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
