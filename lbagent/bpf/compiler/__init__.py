"""Compiles the C sources with BCC into `lbagent.bpf.json`, and reads that file. `python -m lbagent.bpf.compiler` does it.

`artifact.py` reads the built programs; an agent needs no more; `compile.py` alone imports bcc, in a child process.
Nothing here loads a program into the kernel (`bpf/load`).
"""
