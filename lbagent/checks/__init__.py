"""The checks of a node: one table for `lbagent doctor` (before the start) and for the agent (conditions, metrics, alerts).

Here: the table (table.py), a file for each subject (`NAME_checks.py`), the inputs of a check (node_context.py: both;
offline_context.py: doctor; running_context.py: the agent), and the runner (check_runner.py). The records are in
lbagent/model/check.py. Import `every_check`, `offline_findings` and `current_texts` from table.py.

Not here: when the agent runs them, and what it logs (condition_monitor.py); how doctor prints them
(lbagent/cli/verbs/doctor.py); readiness, which depends only on the first full State (lbagent/healthz/).

A new check is a function and a row in the `CHECKS` of its subject, its test, and its row in docs/operations.md.
"""
