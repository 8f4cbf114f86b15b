"""Kubernetes objects (mappings or JSON) to records: what each kind may say, what is wrong with it, and what is kept when it is.

`decode_object.decode_object` and `decode_json` are the entries for every source. Pure: no files, no clock, no YAML.
"""
