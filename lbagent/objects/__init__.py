"""Records of the objects that sources give, the `Source` interface, and the store that merges all sources.

Import `records.py`, `source.py`, `store.py`. Kubernetes' shapes become records in `decode`; reading files or the API is in
`sources`; what the objects mean together is in `resolve`.
"""
