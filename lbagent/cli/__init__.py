"""The command line: a thin client of the agent's API, built with click. It must start in 150 ms.

`main.py` has the table of verbs, `verbs` has a module for each verb; options and output forms are here. No other package imports
this one. A verb imports what it needs when it runs; the rules are in the packages below.
"""
