"""The BPF programs and the code that handles them: C sources, `compiler`, `load` and `run`, one above the other.

`hooks.py` and `tail_calls.py` are the tables of hooks and programs. Import the modules of the subfolders; `include` is C. Map
layouts are in `maps`, system calls in `kernel`, the code that writes the maps in `targets/bpf`.
"""
