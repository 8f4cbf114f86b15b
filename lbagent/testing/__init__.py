"""Test support: the tests that every provider plug-in runs (`provider.py`), and helpers of lbagent's own tests and benchmarks.

`bpf_test_run.py` runs a program on one packet, `faulty_maps.py` fails writes to maps, `snapshot_target.py` is a target of the sync
loop. Import the modules. The package lbagent never imports them, so an agent does not load them.
"""
