"""Which host keys of ssh servers are trusted: a pool file's `hostKey`, a known_hosts file, or any key if the pool file allows it.

Source: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"; hashed names, patterns, @cert-authority and @revoked count as there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from lbagent.apilb.instance import SshAccess
from lbagent.errors import ConfigError, Refused
from lbagent.kernel.regular_file import read_regular

if TYPE_CHECKING:
    import asyncssh

SSH_PORT = 22
USERS_FILE = "~/.ssh/known_hosts"


class HostKeys(Struct, frozen=True):
    """The accepted keys of a server."""

    trusted: list[asyncssh.SSHKey]
    authorities: list[asyncssh.SSHKey]
    revoked: list[asyncssh.SSHKey]
    read_from: str  # for messages

    def options(self) -> dict[str, object]:
        """Return asyncssh's options: known key types come first, others are accepted so that a message can show them."""
        import asyncssh

        # a server sends its certificate if an authority is known
        certificates = asyncssh.public_key.get_default_certificate_algs() if self.authorities else []
        known = [name for key in self.trusted for name in key.sig_algorithms]
        every = sorted(asyncssh.public_key.get_default_public_key_algs(), key=_is_older)  # as OpenSSH prefers them
        names = [name.decode() for name in dict.fromkeys([*certificates, *known, *every])]
        return {"known_hosts": (self.trusted, self.authorities, self.revoked), "server_host_key_algs": names}


def _is_older(algorithm: bytes) -> int:
    return 0 if b"ed25519" in algorithm else 1 if b"ecdsa" in algorithm else 2


def host_keys_of(ssh: SshAccess) -> HostKeys:
    """Return the trusted keys of a host; raises ConfigError for an unreadable key or file."""
    import asyncssh

    if ssh.host_key:
        try:
            return HostKeys([asyncssh.import_public_key(ssh.host_key)], [], [], "hostKey")
        except asyncssh.KeyImportError as error:
            raise ConfigError(
                f"{ssh}: hostKey: {error}; it is written as in known_hosts: ssh-ed25519 AAAA..."
            ) from None
    path = os.path.expanduser(ssh.known_hosts_file or USERS_FILE)
    try:
        text = read_regular(path)
    except OSError as error:
        if ssh.known_hosts_file:
            raise ConfigError(f"{ssh}: knownHostsFile {path}: {error.strerror}") from None
        text = b""  # without a file no host is known
    port = ssh.port if ssh.port != SSH_PORT else None
    try:
        trusted, authorities, revoked, *_ = asyncssh.match_known_hosts(text, ssh.address, "", port)
    except (ValueError, asyncssh.KeyImportError) as error:
        raise ConfigError(f"{ssh}: {path}: {error}") from None
    return HostKeys(list(trusted), list(authorities), list(revoked), path)


def not_trusted(ssh: SshAccess, keys: HostKeys, shown: asyncssh.SSHKey | None) -> Refused:
    """Return the error for a server that sent this key (None: an unreadable one)."""
    if shown is None:
        return Refused(f"{ssh}: its host key is revoked or cannot be read ({keys.read_from}); nothing was sent to it")
    kind, text = shown.export_public_key("openssh").decode().split()[:2]
    host = ssh.address if ssh.port == SSH_PORT else f"[{ssh.address}]:{ssh.port}"
    known = ", ".join(key.get_fingerprint() for key in keys.trusted)
    found = f"its {kind} host key {shown.get_fingerprint()} is "
    found += f"not the known one ({known}); another machine may be answering" if known else "unknown"
    if keys.read_from == "hostKey":
        return Refused(f"{ssh}: {found}. If it is right, add to the pool file: hostKey: {kind} {text}")
    lines = "replace the line in" if known else "add this line to"
    return Refused(f"{ssh}: {found}. If it is right, {lines} {keys.read_from}: {host} {kind} {text}")
