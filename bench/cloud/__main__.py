"""`python -m bench.cloud [--only ROW] [--times N] [--services N] [--without-metallb] [--document]`: measure, print tables.

The figures go into bench/results.json under `cloud`; `--document` also puts the tables into docs/benchmarks.md. Exit code 0 also
when targets were missed: they are named at the end.
"""

from __future__ import annotations

import sys

from bench import benchmark_program
from bench.benchmark_program import Benchmark, say
from bench.cloud import cloud_tables
from bench.cloud.measure import ROWS, Amount, measure
from bench.report import CLOUD_BEGIN

BENCHMARK = Benchmark("cloud", __doc__ or "", ROWS, CLOUD_BEGIN, cloud_tables.text)


def main() -> int:
    """Measure and report."""
    parser = benchmark_program.parser(BENCHMARK, "trials of each gap (20)")
    parser.add_argument("--services", type=int, default=1000, help="Services at once, at most 1,000 (1,000)")
    parser.add_argument("--without-metallb", action="store_true", help="lbagent alone")
    options = parser.parse_args()
    amount = Amount(tuple(options.only or ROWS), options.times, options.services)
    return benchmark_program.run(
        BENCHMARK,
        lambda: measure(amount, metallb=not options.without_metallb, say=say),
        document=options.document,
    )


if __name__ == "__main__":
    sys.exit(main())
