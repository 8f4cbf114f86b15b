"""The checks that hold for every data plane, and the table of all checks.

`lbagent doctor` runs checks before the start; the agent runs them every few seconds (conditions, metrics, alerts).

Here: the table (table.py), a file for each subject (`NAME_checks.py`), the inputs of a check (offline_node.py: doctor;
running_agent.py: the agent), and the runner (check_runner.py). The records are in lbagent/model/check.py. Import `every_check`,
`running_checks`, `offline_findings` and `current_texts` from table.py.

Not here: checks of the parts of one data plane (lbagent/targets/bpf/checks/): `DataPlane.checks()` returns them; how doctor prints
findings (lbagent/cli/verbs/doctor.py); readiness, which depends only on the first full State (lbagent/healthz/).

A new check is a function and a row in the `CHECKS` of its subject, its test, and its row in docs/operations.md.
"""
