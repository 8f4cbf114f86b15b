"""The plan: desired, recorded and observed instances, and the step that follows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lbagent.apilb.instance import Instance, Mode, OnMarkedDown, Secret, SshAccess
from lbagent.apilb.instance_plan import Pair, as_recorded, paired, plan_steps, wanted_text
from lbagent.apilb.plan_records import GONE, RUNNING, Action, Observed, RecordedInstance, Step
from lbagent.errors import ConfigError, HostUnreachable, Refused
from lbagent.probes.probe_spec import ProbeSpec

WANTED = Instance(
    pool="p",
    name="a",
    bind_address="0.0.0.0:6443",
    servers=("10.0.0.2:6443",),
    host_config_path="/etc/haproxy/haproxy.cfg",
)
TEXT = wanted_text(WANTED)
KNOWN = RecordedInstance(
    pool="p", name="a", container_id="id1", status=RUNNING, image=WANTED.image, host_config_path=WANTED.host_config_path,
    config_text=TEXT,
)  # fmt: skip
SEEN = Observed(container_id="id1", status=RUNNING, image=WANTED.image, ours=True, file_text=TEXT)
NATIVE = replace(
    WANTED, mode=Mode.NATIVE, host_config_path="/etc/lbagent/apilb.d/a.yaml", on_marked_down=OnMarkedDown.RESET
)
NATIVE_TEXT = wanted_text(NATIVE)
NATIVE_KNOWN = replace(
    KNOWN, mode=Mode.NATIVE, container_id="", host_config_path=NATIVE.host_config_path, config_text=NATIVE_TEXT
)
NATIVE_SEEN = Observed(status=RUNNING, ours=True, file_text=NATIVE_TEXT)


def step(wanted: Instance | None, recorded: RecordedInstance | None, seen: Observed) -> Step:
    pair = Pair(wanted, recorded)
    (found,), errors = plan_steps([pair], {pair.item.key: seen})
    assert errors == []
    return found


def summary(found: Step) -> tuple[str, list[tuple[str, str, str]]]:
    short = {TEXT: "TEXT", NATIVE_TEXT: "NATIVE"}
    changes = [(each.field, short.get(each.old, each.old), short.get(each.new, each.new)) for each in found.changes]
    return str(found.action), changes


START = ("status", GONE, RUNNING)


@pytest.mark.parametrize(
    ("wanted", "recorded", "seen", "expected"),
    [
        pytest.param(WANTED, KNOWN, SEEN, ("none", []), id="all is as wanted"),
        pytest.param(WANTED, None, Observed(), ("create", [START, ("file", "", "TEXT")]), id="nothing is there"),
        pytest.param(WANTED, KNOWN, Observed(file_text=TEXT), ("create", [START]), id="the container is gone"),
        pytest.param(WANTED, KNOWN, replace(SEEN, status="exited"), ("start", [("status", "exited", RUNNING)]), id="stopped"),
        pytest.param(WANTED, KNOWN, replace(SEEN, file_text="x"), ("update", [("file", "x", "TEXT")]), id="file edited"),
        pytest.param(WANTED, KNOWN, replace(SEEN, file_text=None), ("update", [("file", "", "TEXT")]), id="file gone"),
        pytest.param(
            WANTED, replace(KNOWN, config_text="x"), SEEN, ("update", [("reload", "unknown", "done")]), id="written, not told",
        ),
        pytest.param(
            WANTED, KNOWN, replace(SEEN, file_text=None, status="exited"),
            ("update", [("status", "exited", RUNNING), ("file", "", "TEXT")]), id="stopped, and the file gone",
        ),
        pytest.param(
            replace(WANTED, image="haproxy:9"), KNOWN, SEEN, ("recreate", [("image", WANTED.image, "haproxy:9")]), id="image",
        ),
        pytest.param(
            WANTED, KNOWN, replace(SEEN, spec_matches=False),
            ("recreate", [("container", "made otherwise", "as lbagent makes it")]), id="the seed's container",
        ),
        pytest.param(
            WANTED, replace(KNOWN, image=""), replace(SEEN, image=f"docker.io/library/{WANTED.image}"), ("none", []),
            id="podman's full name of an image",
        ),
        pytest.param(
            WANTED, replace(KNOWN, host_config_path="/a/b"), replace(SEEN, file_text=None),
            ("recreate", [("hostConfigPath", "/a/b", WANTED.host_config_path)]), id="another path",
        ),
        pytest.param(
            WANTED, replace(KNOWN, docker_host="unix:///x"), Observed(),
            ("recreate", [("runtime.docker.host", "unix:///x", WANTED.docker_host)]), id="another runtime",
        ),
        pytest.param(
            WANTED, KNOWN, replace(SEEN, container_id="id2"), ("update", [("container", "id1", "id2")]),
            id="another container, with our label",
        ),
        pytest.param(
            WANTED, KNOWN, replace(SEEN, container_id="id2", ours=False), ("create", [START]), id="another's container: refused by name",
        ),
        pytest.param(WANTED, None, SEEN, ("update", [("container", "", "id1")]), id="the state was lost"),
        pytest.param(WANTED, KNOWN, replace(SEEN, ours=False), ("none", []), id="the state has its id: ours without a label"),
        pytest.param(NATIVE, NATIVE_KNOWN, NATIVE_SEEN, ("none", []), id="native: as wanted"),
        pytest.param(NATIVE, None, Observed(), ("create", [START, ("file", "", "NATIVE")]), id="native: nothing is there"),
        pytest.param(NATIVE, NATIVE_KNOWN, Observed(), ("create", [START, ("file", "", "NATIVE")]), id="native: file gone"),
        pytest.param(
            NATIVE, NATIVE_KNOWN, replace(NATIVE_SEEN, file_text="x"), ("update", [("file", "x", "NATIVE")]), id="native: file edited",
        ),
        pytest.param(NATIVE, None, NATIVE_SEEN, ("update", [("state", "", "known")]), id="native: the state was lost"),
        pytest.param(
            NATIVE, KNOWN, Observed(),
            ("recreate", [("mode", "haproxy", "native"), ("hostConfigPath", KNOWN.host_config_path, NATIVE.host_config_path)]),
            id="haproxy becomes native",
        ),
        pytest.param(None, KNOWN, SEEN, ("remove", [("status", RUNNING, GONE)]), id="removed"),
        pytest.param(None, KNOWN, Observed(), ("remove", [("status", GONE, GONE)]), id="removed, and gone already"),
    ],
)  # fmt: skip
def test_the_step(wanted: Instance | None, recorded: RecordedInstance | None, seen: Observed, expected: object) -> None:
    assert summary(step(wanted, recorded, seen)) == expected


def test_a_container_whose_state_was_lost_is_known_from_then_on() -> None:
    found = step(replace(WANTED, image="haproxy:9"), None, SEEN)
    assert found.action is Action.RECREATE
    assert found.recorded is not None
    assert (found.recorded.container_id, found.recorded.host_config_path) == ("id1", WANTED.host_config_path)


@pytest.mark.parametrize("wanted", [WANTED, NATIVE])
def test_a_file_of_another_is_refused(wanted: Instance) -> None:
    steps, (error,) = plan_steps(
        [Pair(wanted, None)], {wanted.key: Observed(file_text="global\n", ours=wanted is NATIVE)}
    )
    assert steps == []
    assert isinstance(error, Refused)
    assert str(error).startswith(
        f"{wanted.host_config_path} on direct exists and was not written by lbagent; it is not changed"
    )


def test_a_file_that_a_cut_off_apply_left_is_replaced() -> None:
    older = wanted_text(replace(WANTED, servers=("a:1",)))
    assert step(WANTED, None, Observed(file_text=older)).action is Action.CREATE


def test_each_directive_of_haproxy_makes_an_update_alone() -> None:
    for other in (
        replace(WANTED, servers=("10.0.0.3:1",)),
        replace(WANTED, bind_address="127.0.0.1:1"),
        replace(WANTED, health_check=ProbeSpec(path="/readyz")),
        replace(WANTED, on_marked_down=OnMarkedDown.RESET),
    ):
        assert step(other, KNOWN, SEEN).action is Action.UPDATE


def test_authorities_that_a_container_does_not_see() -> None:
    wanted = replace(WANTED, health_check=ProbeSpec(ca_file="/etc/kubernetes/ca.pem"))
    steps, (error,) = plan_steps([Pair(wanted, None)], {wanted.key: Observed()})
    assert steps == []
    assert isinstance(error, ConfigError)


SSH = SshAccess(address="h", user="u", password=Secret("hunter2"))
ON_HOST = replace(WANTED, ssh=SSH)


@pytest.mark.parametrize(
    "ssh",
    [
        SSH,
        SshAccess(address="h", user="v", private_key_file="/k"),
        SshAccess(address="h", user="u", port=23),
        SshAccess(address="h", user="u", connection_timeout=1, retry_timeout=1, retry_interval=1, host_key="x"),
    ],
)  # fmt: skip
def test_another_way_to_a_host_changes_nothing_there(ssh: SshAccess) -> None:
    (pair,) = paired([replace(WANTED, ssh=ssh)], [replace(KNOWN, ssh=SSH)])
    (found,), _ = plan_steps([pair], {pair.item.key: SEEN})
    assert (found.action, found.host) == (Action.NONE, str(ssh))


def test_another_host_is_another_instance() -> None:
    pairs = paired([replace(WANTED, ssh=SshAccess(address="i"))], [replace(KNOWN, ssh=SSH)])
    assert [(each.wanted is None, each.recorded is None) for each in pairs] == [(True, False), (False, True)]
    assert [each.recorded for each in paired([WANTED], [replace(KNOWN, ssh=SSH)])] == [replace(KNOWN, ssh=SSH), None]


def test_one_name_on_several_hosts_and_in_any_order() -> None:
    """The seed identifies instances by their place in the list: without the first one, it recreates all others."""
    hosts = [SshAccess(address=each) for each in "abc"]
    recorded = [replace(KNOWN, ssh=each) for each in hosts]
    pairs = paired([replace(WANTED, ssh=each) for each in (hosts[2], hosts[1])], recorded)
    assert [(each.wanted and each.wanted.ssh, each.recorded and each.recorded.ssh) for each in pairs] == [
        (None, hosts[0]), (hosts[2], hosts[2]), (hosts[1], hosts[1]),
    ]  # fmt: skip


def test_two_ports_of_one_address_stay_apart() -> None:
    one, two = SshAccess(address="h", port=1), SshAccess(address="h", port=2)
    pairs = paired(
        [replace(WANTED, ssh=two), replace(WANTED, ssh=one)], [replace(KNOWN, ssh=one), replace(KNOWN, ssh=two)]
    )
    assert [each.recorded and each.recorded.ssh for each in pairs] == [two, one]


def test_without_hosts_the_states_word_is_taken() -> None:
    def action(wanted: Instance, recorded: RecordedInstance | None) -> Action:
        (found,), _ = plan_steps([Pair(wanted, recorded)], None)
        return found.action

    assert action(WANTED, KNOWN) is Action.NONE
    assert action(WANTED, None) is Action.CREATE
    assert action(replace(WANTED, servers=("a",)), KNOWN) is Action.UPDATE
    assert action(WANTED, replace(KNOWN, status="exited")) is Action.START
    assert action(WANTED, replace(KNOWN, status=GONE, container_id="")) is Action.CREATE
    assert action(NATIVE, NATIVE_KNOWN) is Action.NONE
    assert as_recorded(None) == Observed()


def test_a_host_that_is_not_reached_stops_no_other() -> None:
    error = HostUnreachable("h is away")
    pairs = [Pair(ON_HOST, None), Pair(replace(ON_HOST, name="b"), None), Pair(WANTED, KNOWN)]
    steps, errors = plan_steps(pairs, {pairs[0].item.key: error, pairs[1].item.key: error, pairs[2].item.key: SEEN})
    assert [each.name for each in steps] == ["a"]
    assert errors == [error]


def test_no_secret_is_in_a_step() -> None:
    found = step(replace(WANTED, ssh=SSH), replace(KNOWN, ssh=SSH), replace(SEEN, file_text=""))
    assert "hunter2" not in repr(found)
