"""Data planes, a folder each: they make a State true on this node. `bpf` writes BPF maps, `record` a file, `none` nothing.

`data_plane.py` is the interface that the agent uses, `renderers.py` the list of data planes: import these. `forwarding_checks.py`,
`plain_plane.py` and `service_calls.py` are for data planes; one never imports another. The loop that runs them is in `sync`.
"""
