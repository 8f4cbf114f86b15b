from __future__ import annotations

from tests.bpf.conftest import artifact, fds, netns, root

__all__ = ["artifact", "fds", "netns", "root"]
