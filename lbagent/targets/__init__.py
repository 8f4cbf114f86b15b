"""Data planes, a folder each: they make a State true on this node. `bpf` writes BPF maps.

A data plane implements the interface that `sync` runs; the agent starts it. One never imports another. What all of them need is
in `sync`.
"""
