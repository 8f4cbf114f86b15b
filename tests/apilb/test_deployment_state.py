"""The state after a plan, without a host: the present access to each one, and nothing of a refused one."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from lbagent.apilb.deployment import Deployment, exit_code
from lbagent.apilb.files.pool_files import PoolFiles
from lbagent.apilb.files.state_file import Deployed
from lbagent.apilb.instance import Instance, Secret, SshAccess
from lbagent.apilb.instance_plan import found_instance, wanted_text
from lbagent.apilb.plan_records import RUNNING, Action, Observed
from lbagent.errors import HostUnreachable, Refused

OLD = SshAccess(address="h", user="old", port=22, password=Secret("hunter2"))
NEW = SshAccess(address="h", user="new", port=2222, private_key_file="/k")
WANTED = Instance(pool="default", name="a", bind_address="1.1.1.1:1", servers=("a",), host_config_path="/a/b", ssh=NEW)
SEEN = Observed(container_id="id", status=RUNNING, image=WANTED.image, ours=True, file_text=wanted_text(WANTED))


def deployment(tmp_path: Path, seen: Observed | HostUnreachable) -> Deployment:
    recorded = replace(found_instance(WANTED, SEEN), ssh=OLD)
    files = PoolFiles(pools=("default",), instances=(WANTED,), deployed=Deployed(recorded=(recorded,)), one_pool=True)
    found = Deployment(files, state_path=str(tmp_path / "state.yaml"))
    found.observed = {WANTED.key: seen}
    return found


def test_another_way_to_a_host_is_in_the_state_though_nothing_is_done(tmp_path: Path) -> None:
    found = deployment(tmp_path, SEEN)
    (step,) = found.plan()
    assert step.action is Action.NONE
    found.refresh([step])
    found.save()
    text = (tmp_path / "state.yaml").read_text()
    assert "user: new" in text
    assert "port: 2222" in text
    assert "user: old" not in text
    assert "hunter2" not in text


def test_a_state_that_is_a_link_stays_one_and_is_not_written_when_nothing_changed(tmp_path: Path) -> None:
    found = deployment(tmp_path, SEEN)
    target, link = tmp_path / "kept.yaml", tmp_path / "state.yaml"
    target.write_text("")
    link.symlink_to(target)
    found.save()
    assert link.is_symlink()
    assert target.read_text() == found.state()
    before = target.stat().st_mtime_ns, target.stat().st_ino
    found.save()
    assert (target.stat().st_mtime_ns, target.stat().st_ino) == before


def test_an_export_of_a_host_that_is_not_reached_says_what_the_state_said(tmp_path: Path) -> None:
    found = deployment(tmp_path, HostUnreachable("h is away"))
    found.take_as_found()
    assert "status: running" in found.export()
    assert found.exit_code == 5


def test_exit_codes(tmp_path: Path) -> None:
    away, taken = HostUnreachable("a"), Refused("b")
    assert [exit_code(each) for each in ([], [away], [away, away], [away, taken])] == [0, 5, 5, 1]
    found = deployment(tmp_path, SEEN)
    found.errors, found.done = [away], 1
    assert found.exit_code == 1  # others were done
