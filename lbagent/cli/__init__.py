"""The command line: a thin client of the agent's API, built with click. It must start in 150 ms.

`main.py` has the table of verbs, `verbs` a module for each; options and output forms are here. Nothing imports from here. What a
verb needs is imported when it runs; the rules are in the packages below.
"""
