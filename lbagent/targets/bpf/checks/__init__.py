"""The checks of the BPF data plane, for `lbagent doctor` (before the start) and for the agent (conditions, metrics, alerts).

Here: the table (bpf_checks.py), a file for each subject (`NAME_checks.py`), and the inputs of a check: node_context.py (both),
offline_context.py (doctor), running_context.py (the agent). The records are in lbagent/model/check.py.

Not here: checks that hold for every data plane (lbagent/checks/), and the row `forwarding-off`, which several data planes have
(lbagent/targets/forwarding_checks.py).

A new check is a function and a row in the `CHECKS` of its subject, its test, and its row in docs/operations.md.
"""
