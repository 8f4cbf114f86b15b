"""Records of a plan: the instances in the state, what a host was found to have, and the steps."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from lbagent.apilb.instance import DOCKER_HOST, Instance, InstanceKey, Mode, SshAccess, host_text

GONE = "gone"  # the status of a container, or of a file of native mode, that is not there
RUNNING = "running"  # of a container; also of a file of native mode that is there


class Action(StrEnum):
    """What a step does on its host."""

    CREATE = "create"  # nothing of ours is there: file, then container, then start; a name that is taken is refused
    UPDATE = "update"  # file by rename, then SIGUSR2; a container that does not run is started
    RECREATE = "recreate"  # remove the container of `recorded` (if it is ours), then create
    START = "start"  # file and container are as wanted
    REMOVE = "remove"  # stop and remove the container of `recorded`, and its file
    NONE = "none"


class Change(Struct, frozen=True):
    """What differs in one field."""

    field: str
    old: str
    new: str


class RecordedInstance(Struct, frozen=True, kw_only=True):
    """An instance as the state has it: as it was last made."""

    pool: str
    name: str
    container_id: str = ""  # of native mode: empty
    status: str = ""
    image: str = ""
    mode: Mode = Mode.HAPROXY
    host_config_path: str = ""
    config_text: str = ""  # the file as last written
    ssh: SshAccess | None = None  # its secrets are not in the state; those of the pool files are put in
    docker_host: str = DOCKER_HOST

    @property
    def host(self) -> str:
        """Return the host as plans name it."""
        return host_text(self.ssh)

    @property
    def key(self) -> InstanceKey:
        """Return the key of this instance."""
        return InstanceKey(self.pool, self.name, self.host)


class Observed(Struct, frozen=True, kw_only=True):
    """What a host has under the name and the path of an instance. In native mode there is the file alone."""

    container_id: str = ""
    status: str = GONE  # gone, running, exited, ...
    image: str = ""
    ours: bool = False  # the label names the instance's pool
    spec_matches: bool = True  # network, user, mount, restart policy, label
    file_text: str | None = None  # None: no such file


class Step(Struct, frozen=True, kw_only=True):
    """What is to be done for one instance."""

    pool: str
    name: str
    host: str
    action: Action
    changes: tuple[Change, ...] = ()
    instance: Instance | None = None  # what is wanted; None: remove
    recorded: RecordedInstance | None = None  # what is there, by the state or by what was found

    @property
    def key(self) -> InstanceKey:
        """Return the key of the instance."""
        return InstanceKey(self.pool, self.name, self.host)
