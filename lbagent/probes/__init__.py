"""Health probes: one request to a server with a deadline (tcp, https), and the checker that applies rise and fall.

Import `probe_spec.py` and `checker.py`. Nothing here knows who uses the result: `apilb/native` makes backend states of it.
"""
