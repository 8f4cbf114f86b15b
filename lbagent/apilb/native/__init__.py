"""Native mode: the agent serves the bind addresses of this host's pool files, and health-checks their servers.

`native_source.py` is the source that the agent starts; `connection_reset.py` ends connections to a server that is down, and
`pool_rows.py` makes the rows of `apilb status`. No map is written here: the objects are resolved like those of every source.
"""
