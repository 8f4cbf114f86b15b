"""Benchmarks: ratios taken in one run, of our programs and of the yardsticks in `reference/`. `make bench`, `python -m bench --quick`."""
