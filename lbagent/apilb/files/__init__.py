"""Reads pool files and the state file, and reports all their errors at once; writes the state file and locks it.

Import `pool_files.py` and `state_file.py`. Nothing here contacts a host; the records of an instance are in `apilb/instance.py`.
"""
