"""The Kubernetes API as a source: to come, and its place.

`source.py` will implement `objects.source.Source` (list, then watch; `resume` when a file of the last list is kept), and give
each object to `objects.decode.decode_object` with an Origin whose `source` is "kube". Nothing else in the program changes but
one line in the table of sources (agent/sources.py).
"""
