"""Test support: the tests that every provider plug-in runs (`provider.py`), and helpers of lbagent's own tests and benchmarks.

`bpf_test_run.py` runs a program on one packet, `faulty_maps.py` fails writes to maps. Import the modules; the package lbagent never
imports them, so that an agent does not load them.
"""
