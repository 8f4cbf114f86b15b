"""The agent: its start and stop order, its reload, and the loops that join sources, the sync loop and the data plane.

`app.py` is the composition root: the only module that may import every layer. Only the command line imports from here.
No rule of load balancing is here: meaning is in `resolve`, writing in `targets`, the HTTP answers in `api`.
"""
