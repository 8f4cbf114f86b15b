"""A laboratory of network namespaces: client, node, backends, with real servers and real traffic.

Used by the end-to-end tests, by the benchmark and by `examples/demo`. All its objects have the pid of the owner in their name and
are removed at the end, also after a failure; `netns.sweep()` removes those of killed owners.
"""
