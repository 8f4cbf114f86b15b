"""A laboratory of network namespaces: client, node, backends, with real servers and real traffic.

Used by the end-to-end tests, by the benchmark and by `examples/demo`. Everything it makes carries the pid of its owner in
its name and is gone afterwards, also after a failure; `netns.sweep()` removes what a killed owner left behind.
"""
