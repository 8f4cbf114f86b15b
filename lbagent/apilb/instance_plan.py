"""The steps that make hosts match the pool files (pure), computed from desired, recorded and observed instances.

A container is lbagent's if the state has its id, or if its label names the pool. Other containers are never changed: a create
conflicts with the name, and is refused. A file that is not lbagent's is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lbagent.apilb.files.log_in import is_same_host
from lbagent.apilb.haproxy_config import container_config
from lbagent.apilb.instance import Instance, InstanceKey, Mode
from lbagent.apilb.native_file import HEADER, native_file
from lbagent.apilb.plan_records import GONE, RUNNING, Action, Change, Observed, RecordedInstance, Step
from lbagent.errors import ConfigError, LbError, Refused

Sight = Observed | LbError  # what was found, or the reason why nothing was


class Pair(NamedTuple):
    """A desired and a recorded instance; one of them may be missing."""

    wanted: Instance | None
    recorded: RecordedInstance | None

    @property
    def item(self) -> Instance | RecordedInstance:
        """Return the item to observe: with the access of the pool files, if they have one."""
        found = self.wanted or self.recorded
        assert found is not None
        return found


def paired(instances: Sequence[Instance], recorded: Sequence[RecordedInstance]) -> list[Pair]:
    """Return a pair for each instance; pairs without a desired one come first, as they are removed first.

    User, port and key do not distinguish hosts: the address and the name decide.
    """
    left = {each.key: each for each in recorded}
    found: dict[InstanceKey, RecordedInstance] = {}
    for is_same in (_is_same_way, _is_same_place, _is_same_address):
        for instance in instances:
            if instance.key not in found and (match := next((e for e in left.values() if is_same(instance, e)), None)):
                found[instance.key] = left.pop(match.key)
    removed = [Pair(None, each) for each in left.values()]
    return removed + [Pair(instance, found.get(instance.key)) for instance in instances]


def plan_steps(pairs: Sequence[Pair], observed: Mapping[InstanceKey, Sight] | None) -> tuple[list[Step], list[LbError]]:
    """Return the steps, and the reasons why other steps are unknown. Without `observed` the state is trusted."""
    steps: list[Step] = []
    errors: dict[str, LbError] = {}
    for pair in pairs:
        seen = as_recorded(pair.recorded) if observed is None else observed[pair.item.key]
        try:
            if isinstance(seen, LbError):
                raise seen
            steps.append(_step(pair, seen))
        except LbError as error:
            errors.setdefault(str(error), error)
    return steps, list(errors.values())


def as_recorded(recorded: RecordedInstance | None) -> Observed:
    """Return what exists if nothing has changed since the state was written."""
    if recorded is None:
        return Observed()
    return Observed(
        container_id=recorded.container_id,
        status=recorded.status or RUNNING,
        image=recorded.image,
        ours=True,
        file_text=recorded.config_text,
    )


def wanted_text(instance: Instance) -> str:
    """Return the text of the file at hostConfigPath. Raises ConfigError."""
    if instance.mode is Mode.NATIVE:
        return native_file(instance)
    try:
        return container_config(instance)
    except ValueError as error:
        raise ConfigError(f"pool {instance.pool}, {instance.name}: {error}") from None


def _step(pair: Pair, seen: Observed) -> Step:
    item = pair.item
    if pair.wanted is None:
        action, changes = _removal(seen)
    else:
        action, changes = _decide(pair.wanted, pair.recorded, seen)
    recorded = pair.recorded
    if recorded is None and action is not Action.CREATE:  # lbagent's by its label: the state was lost
        recorded = found_instance(item, seen)
    return Step(
        pool=item.pool,
        name=item.name,
        host=item.host,
        action=action,
        changes=changes,
        instance=pair.wanted,
        recorded=recorded,
    )


def _removal(seen: Observed) -> tuple[Action, tuple[Change, ...]]:
    return Action.REMOVE, (Change("status", seen.status, GONE),)


def _decide(wanted: Instance, recorded: RecordedInstance | None, seen: Observed) -> tuple[Action, tuple[Change, ...]]:
    text = wanted_text(wanted)
    file = _file_change(seen, text)
    if recorded and (moved := _moved(wanted, recorded)):
        return Action.RECREATE, moved
    ours = wanted.mode is Mode.NATIVE or _is_ours(recorded, seen)
    status = () if seen.status == RUNNING and ours else (Change("status", seen.status if ours else GONE, RUNNING),)
    if recorded is None and file and not is_left_by_us(wanted.mode, seen):
        raise Refused(
            f"{wanted.host_config_path} on {wanted.host} exists and was not written by lbagent; it is not changed: "
            f"move it away, or give {wanted.name} (pool {wanted.pool}) another hostConfigPath"
        )
    if wanted.mode is Mode.NATIVE:
        return _decide_file(recorded, seen, file)
    if seen.status == GONE or not ours:
        return Action.CREATE, status + file
    if different := _different(wanted, recorded, seen):
        return Action.RECREATE, different + status + file
    adopted = () if recorded and recorded.container_id == seen.container_id else (_adoption(recorded, seen),)
    reload = _reload(recorded, text) if not file else ()
    if file or adopted or reload:
        return Action.UPDATE, adopted + status + file + reload
    return (Action.START, status) if status else (Action.NONE, ())


def _decide_file(
    recorded: RecordedInstance | None, seen: Observed, file: tuple[Change, ...]
) -> tuple[Action, tuple[Change, ...]]:
    if seen.file_text is None:
        return Action.CREATE, (Change("status", GONE, RUNNING), *file)
    if file or recorded is None:
        return Action.UPDATE, file or (Change("state", "", "known"),)
    return Action.NONE, ()


def _file_change(seen: Observed, text: str) -> tuple[Change, ...]:
    return () if seen.file_text == text else (Change("file", seen.file_text or "", text),)


def _reload(recorded: RecordedInstance | None, text: str) -> tuple[Change, ...]:
    """Return the rest of an apply that was interrupted between writing the file and reloading HAProxy."""
    if recorded is None or recorded.config_text == text:
        return ()
    return (Change("reload", "unknown", "done"),)


def _moved(wanted: Instance, recorded: RecordedInstance) -> tuple[Change, ...]:
    """Return the changes that move an instance to another place: the old one must be removed there."""
    fields = [("mode", str(recorded.mode), str(wanted.mode))]
    fields.append(("hostConfigPath", recorded.host_config_path, wanted.host_config_path))
    if wanted.mode is recorded.mode is Mode.HAPROXY:
        fields.append(("runtime.docker.host", recorded.docker_host, wanted.docker_host))
    return tuple(Change(*each) for each in fields if each[1] != each[2])


def _different(wanted: Instance, recorded: RecordedInstance | None, seen: Observed) -> tuple[Change, ...]:
    """Return the changes that an existing container cannot get."""
    as_made = (
        recorded.image if recorded and recorded.image and recorded.container_id == seen.container_id else seen.image
    )
    changes = []
    if _full_image(as_made) != _full_image(wanted.image):
        changes.append(Change("image", as_made, wanted.image))
    if not seen.spec_matches:
        changes.append(Change("container", "made otherwise", "as lbagent makes it"))
    return tuple(changes)


def _adoption(recorded: RecordedInstance | None, seen: Observed) -> Change:
    return Change("container", recorded.container_id if recorded else "", seen.container_id)


def _is_ours(recorded: RecordedInstance | None, seen: Observed) -> bool:
    return seen.ours or bool(recorded and recorded.container_id and recorded.container_id == seen.container_id)


def is_left_by_us(mode: Mode, seen: Observed) -> bool:
    """Return whether a file may be replaced although no state has it: an apply was interrupted, or its state was lost."""
    return (seen.ours and mode is Mode.HAPROXY) or seen.file_text is None or is_ours_file(mode, seen.file_text)


def is_ours_file(mode: Mode, text: str) -> bool:
    """Return whether a file has the form that lbagent or flexkube writes."""
    if mode is Mode.NATIVE:
        return text.startswith(HEADER)
    return "\nfrontend kube-apiserver\n" in text and "\nbackend kube-apiserver\n" in text


def _full_image(text: str) -> str:
    """Return the full name of an image: podman shows docker.io/library/haproxy:latest for haproxy."""
    for prefix in ("docker.io/library/", "docker.io/", "localhost/"):
        text = text.removeprefix(prefix)
    return text if ":" in text.rpartition("/")[2] or "@" in text else f"{text}:latest"


def found_instance(item: Instance | RecordedInstance, seen: Observed) -> RecordedInstance:
    """Return the record of an observed instance, for the state."""
    return RecordedInstance(
        pool=item.pool,
        name=item.name,
        container_id=seen.container_id,
        status=seen.status,
        image=seen.image,
        mode=item.mode,
        host_config_path=item.host_config_path,
        config_text=seen.file_text or "",
        ssh=item.ssh,
        docker_host=item.docker_host,
    )


def _is_same_way(instance: Instance, recorded: RecordedInstance) -> bool:
    return instance.key == recorded.key


def _is_same_place(instance: Instance, recorded: RecordedInstance) -> bool:
    if (instance.pool, instance.name) != (recorded.pool, recorded.name):
        return False
    if instance.ssh and recorded.ssh:
        return is_same_host(instance.ssh, recorded.ssh)
    return instance.ssh is None and recorded.ssh is None


def _is_same_address(instance: Instance, recorded: RecordedInstance) -> bool:
    same_name = (instance.pool, instance.name) == (recorded.pool, recorded.name)
    return bool(same_name and instance.ssh and recorded.ssh and instance.ssh.address == recorded.ssh.address)
