"""A load balancer of API servers as pool files define it, after inheritance and defaults. Times are in seconds.

Source: flexkube's apiloadbalancer package, with its keys in snake case; mode, health check and the fields after it are lbagent's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from lbagent.probes.probe_spec import ProbeSpec

DEFAULT_NAME = "api-loadbalancer-haproxy"
DIRECT = "direct"  # this host
DOCKER_HOST = "unix:///var/run/docker.sock"  # also podman's


class Mode(StrEnum):
    """What serves a bind address."""

    HAPROXY = "haproxy"
    NATIVE = "native"


class OnMarkedDown(StrEnum):
    """What happens to connections to a server that is down."""

    KEEP = "keep"
    RESET = "reset"


class Secret:
    """A password or a private key; no representation contains its text, so no log, plan or state does."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(...)"


class InstanceKey(NamedTuple):
    """Identifies an instance: a name is unique on a host, and often the same on each host of a pool."""

    pool: str
    name: str
    host: str  # "direct", or "ssh://USER@ADDRESS:PORT"


class SshAccess(Struct, frozen=True, kw_only=True):
    """The access to a host by ssh."""

    address: str
    user: str = "root"
    port: int = 22
    password: Secret | None = None
    private_key: Secret | None = None  # PEM
    private_key_file: str = ""
    connection_timeout: float = 30.0
    retry_timeout: float = 60.0
    retry_interval: float = 1.0
    host_key: str = ""  # as a line of known_hosts without its host: "ssh-ed25519 AAAA..."
    known_hosts_file: str = ""
    insecure_ignore_host_key: bool = False

    def __str__(self) -> str:
        """Return `ssh://USER@ADDRESS:PORT`, which has no secrets."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"ssh://{self.user}@{address}:{self.port}"


class Instance(Struct, frozen=True, kw_only=True):
    """One load balancer on one host, with the values inherited from its pool."""

    pool: str
    name: str = DEFAULT_NAME
    image: str = "haproxy:3.0.4-alpine"
    mode: Mode = Mode.HAPROXY
    bind_address: str  # ADDRESS:PORT, [ADDRESS]:PORT
    servers: tuple[str, ...]  # HOST or HOST:PORT
    host_config_path: str
    ssh: SshAccess | None = None  # None: this host
    health_check: ProbeSpec | None = None  # None: not given; native mode uses the defaults
    on_marked_down: OnMarkedDown = OnMarkedDown.KEEP
    docker_host: str = DOCKER_HOST
    post_start: tuple[str, ...] = ()  # argv, run on the host after a container was started

    @property
    def host(self) -> str:
        """Return the host's name in plans."""
        return host_text(self.ssh)

    @property
    def is_served_here(self) -> bool:
        """Whether the agent of this host serves it."""
        return self.mode is Mode.NATIVE and self.ssh is None

    @property
    def key(self) -> InstanceKey:
        """Return the key of this instance."""
        return InstanceKey(self.pool, self.name, self.host)


def host_text(ssh: SshAccess | None) -> str:
    """Return the host's name in plans: `direct` or `ssh://USER@ADDRESS:PORT`."""
    return str(ssh) if ssh else DIRECT
