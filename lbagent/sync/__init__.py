"""The sync loop: joins the sources, resolves their objects to a State, and runs each data plane with retries.

`loop.py` and `runner.py` are the agent's; `target_protocol.py` is the interface of a data plane. Import the modules. Nothing here
uses a map or the kernel: data planes are in `targets`.
"""
