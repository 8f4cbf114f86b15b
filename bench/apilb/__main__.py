"""`python -m bench.apilb [--only ROW] [--times N] [--quick] [--document]`: measure load balancers of API servers, print tables.

The figures go into bench/results.json under `apilb`; `--document` also puts the tables into docs/benchmarks.md. Exit code 0 also
when targets were missed: they are named at the end.
"""

from __future__ import annotations

import sys

from bench import benchmark_program
from bench.apilb import apilb_tables
from bench.apilb.measure import ROWS, Amount, measure, quick
from bench.benchmark_program import Benchmark, say
from bench.report import APILB_BEGIN

BENCHMARK = Benchmark("apilb", __doc__ or "", ROWS, APILB_BEGIN, apilb_tables.text)


def main() -> int:
    """Measure and report."""
    parser = benchmark_program.parser(BENCHMARK, "failures of each kind (20); long trials a quarter as often")
    parser.add_argument("--quick", action="store_true", help="less of everything, at most 4 times")
    options = parser.parse_args()
    rows = tuple(options.only or ROWS)
    amount = quick(rows, options.times) if options.quick else Amount(rows, options.times)
    return benchmark_program.run(
        BENCHMARK, lambda: measure(amount, say), document=options.document, quick=options.quick
    )


if __name__ == "__main__":
    sys.exit(main())
