"""The agent's HTTP API on its unix socket: what the agent can do, the server, and the client of the command line.

A capability is a file of `capabilities/`: its routes, lists and metrics as rows (`capability.py`). The other files have the
answers: records, and the classes that make them; the agent builds these and binds the rows to them (lbagent/agent/parts.py). Import
the modules. The command line imports `client.py` and `capabilities/` alone, which load quickly.

Not here: the HTTP server itself (lbagent/http/), values of the data plane, of announcements and of native pools (their folders).
"""
