"""Kubernetes objects (mappings or JSON) to records: allowed fields, faults with their place, the kept parts of a faulty object.

`decode_object.decode_object` and `decode_json` are the entries for every source. Pure: no files, no clock, no YAML.
"""
