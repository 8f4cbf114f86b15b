"""The namespace of the tests of sockets."""

from __future__ import annotations

from tests.bpf.conftest import netns

__all__ = ["netns"]
