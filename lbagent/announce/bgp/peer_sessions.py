"""Which sessions this node has: the peers whose nodeSelector matches it, with their passwords and the node's addresses."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lbagent.announce.bgp.bird_config import PeerSession, check_password
from lbagent.announce.bgp.node_addresses import local_addresses
from lbagent.errors import ConfigError
from lbagent.kernel.regular_file import read_regular
from lbagent.model.address import format_ip
from lbagent.net.snapshot import NodeNetwork
from lbagent.pools.announcement import BgpPeer, BgpSettings

MAX_PASSWORD_FILE_BYTES = 4096


class PeerSessions:
    """Reads password files; paths are relative to `folder`. A password that was read stays when its file becomes unreadable."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._passwords: dict[tuple[bytes, str], str] = {}
        self.problems: list[str] = []  # of the last selection, one sentence each

    def choose(self, settings: BgpSettings, labels: Mapping[str, str], network: NodeNetwork) -> list[PeerSession]:
        """Return the sessions of a node with these labels, in the order of the file; those without their password are left out."""
        self.problems = []
        found = []
        for peer in settings.peers:
            if not peer.node_selector.matches(labels):
                continue
            password = self._password(peer)
            if password is not None:
                found.append(PeerSession(peer, *local_addresses(network, peer.address), password))
        return found

    def _password(self, peer: BgpPeer) -> str | None:
        """Return the password of a session, '' for none; None if it needs one that was never read."""
        if not peer.password_file:
            return ""
        path = os.path.join(self._folder, peer.password_file)
        key = peer.address, path
        try:
            self._passwords[key] = _read_password(path)
        except ConfigError as error:
            stays = "it keeps the one that was read before" if key in self._passwords else "it has no session"
            self.problems.append(f"BGP peer {format_ip(peer.address)}: {error}; {stays}")
        return self._passwords.get(key)


def _read_password(path: str) -> str:
    """Return the text of a password file, without its last line end. Raises ConfigError."""
    what = f"passwordFile {path}"
    try:
        data = read_regular(path, MAX_PASSWORD_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what}: {getattr(error, 'strerror', None) or error}") from None
    text = data.decode(errors="surrogateescape").removesuffix("\n").removesuffix("\r")
    return check_password(text, what)
