"""Conditions: what is wrong with a running agent, its node or what it depends on, checked every few seconds.

`every_check.py` lists the checks, `monitor.py` runs them; import `condition.py` for the records. A check reads and returns
conditions; a repair that a check makes is in its own module. What `lbagent doctor` checks before a start is not here.
"""
