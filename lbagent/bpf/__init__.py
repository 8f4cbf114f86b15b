"""The BPF programs and all that handles them: C sources, `compiler`, `load` and `run`, one above the other.

`hooks.py` and `tail_calls.py` are the tables of hooks and programs. Import the modules of the subfolders; `include` is C. The maps'
layouts are not here (`maps`), nor system calls (`kernel`), nor what is written to maps (`targets/bpf`).
"""
