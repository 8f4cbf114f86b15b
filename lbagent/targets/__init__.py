"""Data planes, a folder each: they make a State true on this node. `bpf` writes BPF maps, `record` a file, `none` nothing.

`data_plane.py` is the interface that the agent uses, `renderers.py` makes data planes of the words of `--renderer`: import these.
`forwarding_checks.py` and `plain_plane.py` are for data planes; `renderer_plane.py` is one that drives a renderer (lbagent.render).
One data plane never imports another. The loop that runs them is in `sync`.
"""
