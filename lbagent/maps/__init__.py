"""The maps: byte layouts, specifications, codecs of their entries, and access to them in the kernel or in memory.

`lbmaps.py` is the interface, `kernel_maps.py` and `memory_maps.py` implement it; `layout.py` and `flow_layout.py` hold every byte
layout. Import the modules. `targets/bpf` decides what is written, and in which order.
"""
