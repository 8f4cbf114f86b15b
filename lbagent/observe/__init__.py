"""Logs and metrics: the log formats, the Prometheus text format, and the metrics of the agent.

Import the modules. Values come from the caller; nothing here reads a map or keeps a counter.
"""
