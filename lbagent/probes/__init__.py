"""Health probes: one request to a server with a deadline (tcp, http, https, udp, grpc), and the checker that applies rise and fall.

Import `probe_spec.py`, `probe_kinds.py`, `probe_protocol.py` and `checker.py`. The user of the results is elsewhere: `apilb/native`
derives backend states from them.
"""
