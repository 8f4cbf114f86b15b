"""Drives loaded programs: sweeping, moving flows to maps of another size, ending sockets, counting refused frames.

Import the modules; each is one task of the agent or of a command. Nothing here attaches programs (`bpf/load`).
"""
