"""Text files that people write: reading with bounds, YAML with line numbers, faults by field, following a file's changes.

Import the modules. `config`, `pools`, `apilb/files`, `cloud` and `sources` define the contents of their files.
"""
