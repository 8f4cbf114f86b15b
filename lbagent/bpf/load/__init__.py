"""Loads the programs with their settings, attaches them to devices and cgroups, and replaces a running generation.

Import `datapath.py`, which joins the others, and `program_settings.py`. What drives loaded programs is not here (`bpf/run`).
"""
