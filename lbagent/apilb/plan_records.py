"""Records of a plan: the instances in the state, what a host has, and the steps."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from lbagent.apilb.instance import DOCKER_HOST, Instance, InstanceKey, Mode, SshAccess, host_text

GONE = "gone"  # the status of a missing container, or of a missing file of native mode
RUNNING = "running"  # of a container; also of an existing file of native mode


class Action(StrEnum):
    """The action of a step on its host."""

    CREATE = "create"  # nothing of lbagent's exists: file, then container, then start; a name in use is refused
    UPDATE = "update"  # file by rename, then SIGUSR2; a stopped container is started
    RECREATE = "recreate"  # remove the container of `recorded` (if it is lbagent's), then create
    START = "start"  # file and container match
    REMOVE = "remove"  # stop and remove the container of `recorded`, and its file
    NONE = "none"


class Change(Struct, frozen=True):
    """The difference in one field."""

    field: str
    old: str
    new: str


class RecordedInstance(Struct, frozen=True, kw_only=True):
    """An instance in the state: as it was last deployed."""

    pool: str
    name: str
    container_id: str = ""  # of native mode: empty
    status: str = ""
    image: str = ""
    mode: Mode = Mode.HAPROXY
    host_config_path: str = ""
    config_text: str = ""  # the file as last written
    ssh: SshAccess | None = None  # the state has no secrets; those of the pool files are added
    docker_host: str = DOCKER_HOST

    @property
    def host(self) -> str:
        """Return the host's name in plans."""
        return host_text(self.ssh)

    @property
    def key(self) -> InstanceKey:
        """Return the key of this instance."""
        return InstanceKey(self.pool, self.name, self.host)


class Observed(Struct, frozen=True, kw_only=True):
    """What a host has under the name and the path of an instance. In native mode only the file exists."""

    container_id: str = ""
    status: str = GONE  # gone, running, exited, ...
    image: str = ""
    ours: bool = False  # the label names the instance's pool
    spec_matches: bool = True  # network, user, mount, restart policy, label
    file_text: str | None = None  # None: no such file


class Step(Struct, frozen=True, kw_only=True):
    """The step for one instance."""

    pool: str
    name: str
    host: str
    action: Action
    changes: tuple[Change, ...] = ()
    instance: Instance | None = None  # the desired instance; None: remove
    recorded: RecordedInstance | None = None  # the existing instance, from the state or as observed

    @property
    def key(self) -> InstanceKey:
        """Return the key of the instance."""
        return InstanceKey(self.pool, self.name, self.host)
