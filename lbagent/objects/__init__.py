"""Records of the objects that sources give, the `Source` interface, and the store that merges all sources.

Import `records.py`, `source.py`, `store.py`. `decode` makes records of Kubernetes' shapes; `sources` reads files and the API;
`resolve` combines the objects.
"""
