"""The BPF data plane: plans map writes from a State (pure), applies them in order, finds drift, and restores after a restart.

Import `bpf_plane.py` (and `dry_run.py` for `lbagent plan`). Map layouts are in `maps`, programs in `bpf`, paths in `net`.
"""
