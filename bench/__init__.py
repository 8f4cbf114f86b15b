"""Benchmarks: ratios within one run, of lbagent's programs and of the reference programs in `reference/`. `make bench`, `python -m bench --quick`."""
