"""The agent's HTTP API on its unix socket: records of requests and answers, the server, and the client of the command line.

`agent_api.py` is the interface that the agent implements; import the modules. The HTTP server itself is in `http`, the
answers' contents come from `agent`. The command line imports `client.py` alone, which loads quickly.
"""
