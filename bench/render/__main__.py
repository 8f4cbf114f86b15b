"""`python -m bench.render [--only ROW] [--times N] [--quick] [--document]`: measure nftables beside kube-proxy, print tables.

The figures go into bench/results.json under `render`; `--document` also puts the tables into docs/benchmarks.md. Exit code 0 also
when targets were missed: they are named at the end.
"""

from __future__ import annotations

import sys

from bench import benchmark_program
from bench.benchmark_program import Benchmark, say
from bench.render import render_tables
from bench.render.measure import QUICK, ROWS, Amount, measure
from bench.report import RENDER_BEGIN

BENCHMARK = Benchmark("render", __doc__ or "", ROWS, RENDER_BEGIN, render_tables.text)


def main() -> int:
    """Measure and report."""
    parser = benchmark_program.parser(BENCHMARK, "starts of each (3)")
    parser.add_argument("--quick", action="store_true", help="fewer Services, changes and rounds")
    parser.set_defaults(times=3)
    options = parser.parse_args()
    amount = QUICK if options.quick else Amount(starts=options.times)
    return benchmark_program.run(
        BENCHMARK,
        lambda: measure(amount, options.only or ROWS, say),
        document=options.document,
        quick=options.quick,
    )


if __name__ == "__main__":
    sys.exit(main())
