"""The BPF data plane: plans map writes from a State (pure), applies them in order, finds drift, and restores after a restart.

Import `bpf_renderer.py`, whose functions import the rest when they are called (and `dry_run.py` for `lbagent plan`). Its checks are
in `checks/`. Map layouts are in `maps`, programs in `bpf`, paths in `net`.
"""
