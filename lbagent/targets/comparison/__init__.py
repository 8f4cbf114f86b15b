"""`lbagent agent --shadow`: where lbagent would decide otherwise than the proxy that serves this node. Nothing is written.

Import `comparing_plane`. `conntrack_events` reads the kernel's new connections, `expected_backends` has what a State chooses for
each (pure), `compared_flows` counts both and keeps examples.
"""
