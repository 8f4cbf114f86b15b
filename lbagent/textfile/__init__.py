"""Text files that people write: reading with bounds, YAML with line numbers, faults by field, following a file's changes.

Import the modules. What a file means is not here: `config`, `pools`, `apilb/files`, `cloud` and `sources` know their shapes.
"""
