"""When a transaction of nftables is in the kernel: by the kernel's notifications (NFNLGRP_NFTABLES), without polling."""

from __future__ import annotations

import contextlib
import socket
import struct

from bench.kube.kube_node import KubeNode

NETLINK_NETFILTER, NFNLGRP_NFTABLES, NETLINK_ADD_MEMBERSHIP, SOL_NETLINK = 12, 7, 1, 270
NEWGEN = 10 << 8 | 15  # NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN: the preceding messages are in force
ROOM = 64 << 20


class Commits:
    """Transactions of nftables in a namespace, from the kernel's notifications."""

    def __init__(self, node: KubeNode, word: str = "/{}/tcp/") -> None:
        """Start to listen; `word` is what names a Service: in kube-proxy's chains, or in lbagent's comments."""
        self._form = word
        with node.lab.node.entered():
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_NETFILTER)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, ROOM)  # SO_RCVBUFFORCE
        self._socket.bind((0, 0))
        self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NFNLGRP_NFTABLES)
        self._word, self._is_named = b"", False

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def arm(self, name: str, count: int) -> None:  # noqa: ARG002 - the count is compared in a map
        """Wait for the next transaction that names this Service."""
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(1 << 20):
                pass
        self._word, self._is_named = self._form.format(name).encode(), False

    def poll(self) -> bool:
        """Whether that transaction is in force."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self._socket.recv(1 << 20)
                self._is_named = self._is_named or self._word in data
                if self._is_named and _has_newgen(data):
                    return True
        return False

    def close(self) -> None:
        """Stop."""
        self._socket.close()


def _has_newgen(data: bytes) -> bool:
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind == NEWGEN:
            return True
        at += max(16, length + 3 & ~3)
    return False
