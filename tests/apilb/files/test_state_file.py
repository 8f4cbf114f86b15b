"""The state file: a written one is read back, the seed's is converted, and a damaged one is rejected with one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lbagent.apilb.files.pool_document import PoolFaults
from lbagent.apilb.files.pool_files import PoolFiles, read_pool_files
from lbagent.apilb.files.state_file import Deployed, state_text
from lbagent.apilb.instance import Mode, Secret, SshAccess
from lbagent.apilb.plan_records import RecordedInstance
from tests.apilb.pool_texts import parse_pool_text

SEEDS = """\
state:
  "0":
    container:
      config:
        name: api-loadbalancer-haproxy
        image: haproxy:2.8.1-alpine
        mounts:
        - source: /etc/haproxy/haproxy.cfg
          target: /usr/local/etc/haproxy/haproxy.cfg
        networkMode: host
        user: "65534"
      status:
        id: 5f3c
        status: running
      runtime:
        docker:
          host: unix:///var/run/docker.sock
    host:
      ssh:
        address: 10.0.0.9
        port: 22
        user: core
        password: hunter2
        connectionTimeout: 30s
        retryTimeout: 1m0s
        retryInterval: 1s
    configFiles:
      /etc/haproxy/haproxy.cfg: |
        defaults
          mode tcp
  "1":
    container:
      config: {name: other, image: "haproxy:2.8.1-alpine", mounts: [{source: /etc/other/haproxy.cfg, target: /x}]}
      status: {}
      runtime: {docker: {}}
    host: {direct: {}}
"""


def recorded(name: str = "a", pool: str = "default", **fields: object) -> RecordedInstance:
    values = {
        "container_id": "12e4",
        "status": "running",
        "image": "haproxy:3",
        "host_config_path": "/etc/haproxy/haproxy.cfg",
        "config_text": "defaults\n  mode tcp\n",
    }
    return RecordedInstance(pool=pool, name=name, **values | fields)  # type: ignore[arg-type]


def read(text: str) -> PoolFiles:
    return parse_pool_text(text, "state.yaml", environ={})


def test_the_seeds_state_is_read_and_converted() -> None:
    found = read(SEEDS)
    first, second = found.deployed.recorded
    ssh = SshAccess(address="10.0.0.9", user="core", password=Secret("hunter2"))
    assert first == recorded(
        "api-loadbalancer-haproxy", container_id="5f3c", image="haproxy:2.8.1-alpine", ssh=ssh
    )  # fmt: skip
    assert (second.name, second.container_id, second.status, second.ssh) == ("other", "", "", None)
    assert (second.host_config_path, second.docker_host) == ("/etc/other/haproxy.cfg", "unix:///var/run/docker.sock")
    text = state_text(found.deployed, one_pool=True)
    assert list(yaml.safe_load(text)["state"]) == ["api-loadbalancer-haproxy", "other", "version"]
    assert "hunter2" not in text + repr(found)


def test_a_pool_that_is_only_in_the_state_is_no_fault() -> None:
    assert read("apiLoadBalancers: []\n" + SEEDS).instances == ()
    assert read(SEEDS).pools == ()


@pytest.mark.parametrize("one_pool", [True, False])
def test_what_is_written_is_read_back(one_pool: bool) -> None:
    ssh = SshAccess(
        address="h", user="u", port=23, connection_timeout=0.5, retry_timeout=0, private_key_file="/k",
        host_key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        known_hosts_file="/kh", insecure_ignore_host_key=True,
    )  # fmt: skip
    given = Deployed(recorded=(
        recorded("a"),
        recorded("b", ssh=ssh),
        recorded("0", mode=Mode.NATIVE, image="", container_id="", host_config_path="/etc/lbagent/apilb.d/0.yaml", docker_host="unix:///x"),
    ))  # fmt: skip
    assert read(state_text(given, one_pool=one_pool)).deployed == given


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], include_characters="\n\t"), max_size=20))
def test_every_text_is_read_back(text: str) -> None:
    deployed = Deployed(recorded=(recorded(container_id=text, config_text=text),))
    (found,) = read(state_text(deployed, one_pool=True)).deployed.recorded
    assert (found.container_id, found.config_text) == (text, text)


@pytest.mark.parametrize("name", ["version", "apiLoadBalancerPools", "0", "state"])
def test_an_instance_may_have_any_name(name: str) -> None:
    deployed = Deployed(recorded=(recorded(name),))
    assert read(state_text(deployed, one_pool=True)).deployed == deployed


def test_one_name_on_several_hosts() -> None:
    hosts = [SshAccess(address=each, private_key_file="/k") for each in ("h1", "h2")]
    deployed = Deployed(recorded=(*(recorded("a", ssh=each) for each in hosts), recorded("b", ssh=hosts[0])))
    text = state_text(deployed, one_pool=True)
    assert list(yaml.safe_load(text)["state"]) == ["a@ssh://root@h1:22", "a@ssh://root@h2:22", "b", "version"]
    assert read(text).deployed == deployed


def test_what_flexkube_keeps_in_the_file_stays() -> None:
    values = yaml.safe_load(SEEDS)["state"]
    others = {
        "etcd": {"0": {"container": {"config": {"name": "etcd"}}}},
        "pki": {"key": "-----BEGIN\nx\n", "n": "0o17"},
    }
    text = yaml.dump({"state": others | {"apiLoadBalancerPools": {"p": values}}}, default_style='"')
    found = read(text).deployed
    assert [each.key[:2] for each in found.recorded] == [("p", "api-loadbalancer-haproxy"), ("p", "other")]
    again = yaml.safe_load(state_text(found, one_pool=False))["state"]
    assert {key: again[key] for key in others} == others
    assert list(again["apiLoadBalancerPools"]["p"]) == ["api-loadbalancer-haproxy", "other"]


@pytest.mark.parametrize("one_pool", [True, False])
def test_a_state_that_was_cut_off_is_refused(one_pool: bool) -> None:
    lines = state_text(Deployed(recorded=(recorded("a"), recorded("b"))), one_pool=one_pool).splitlines(keepends=True)
    for count in range(4, len(lines)):  # before, there is no entry yet
        with pytest.raises(PoolFaults) as caught:
            read("".join(lines[:count]))
        assert len(caught.value.faults) == 1, caught.value
    assert "it is truncated; restore a complete copy" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("state: {version: 2, a: {}}", "state.yaml:1: state.version: another lbagent wrote version 2; this one reads 1, and changes nothing here"),
        ("state: [a]", "state.yaml:1: state: a mapping is wanted, not a list"),
        ("state: {'0': }", "state.yaml:1: state.0: it is empty; it must have the entry of an instance"),
        ("state: {'0': {container: {}}}", "state.yaml:1: state.0.name: it is missing; the entry of an instance has container.config.name"),
        ("state: {'0': {container: {config: {name: a}}, host: {ssh: {user: a}}}}", "state.yaml:1: state.0.host.ssh.address: address must be set"),
    ],
)  # fmt: skip
def test_a_damaged_state_is_refused(text: str, expected: str) -> None:
    with pytest.raises(PoolFaults) as caught:
        read("apiLoadBalancers: [{bindAddress: '1.1.1.1:1', servers: [a]}]\n" + text)
    assert str(caught.value).replace(":2:", ":1:") == expected


POOL = "bindAddress: 0.0.0.0:1\nservers: [a]\n"


def test_the_state_file_beats_the_state_in_the_other_files(tmp_path: Path) -> None:
    config, state = tmp_path / "config.yaml", tmp_path / "state.yaml"
    config.write_text(
        POOL + "apiLoadBalancers: []\n" + state_text(Deployed(recorded=(recorded("old"),)), one_pool=True)
    )
    found = read_pool_files([str(config)], state_path=str(state))
    assert [each.name for each in found.deployed.recorded] == ["old"]
    state.write_text(state_text(Deployed(recorded=(recorded("new"),)), one_pool=True))
    found = read_pool_files([str(config)], state_path=str(state))
    assert [each.name for each in found.deployed.recorded] == ["new"]
    assert [str(each) for each in found.warnings] == [f"{config}:5: state: ignored: {state} exists and overrides it"]
    config.write_text(POOL + "apiLoadBalancers: []\n")
    found = read_pool_files([str(config), str(state)], state_path=str(state))  # as users of the seed do
    assert [each.name for each in found.deployed.recorded] == ["new"]
    assert found.warnings == ()
    state.write_text("")
    with pytest.raises(PoolFaults, match="at least one load balancer must be defined if state is empty"):
        read_pool_files([str(config)], state_path=str(state))


def test_log_in_of_a_host_that_only_the_state_knows() -> None:
    """A state has no secrets; without those of the pool nothing could be removed over ssh."""
    state = state_text(Deployed(recorded=(recorded("a", ssh=SshAccess(address="h", user="u")),)), one_pool=True)
    (found,) = read(POOL + "ssh: {user: v, password: hunter2}\napiLoadBalancers: []\n" + state).deployed.recorded
    assert found.ssh == SshAccess(address="h", user="v", password=Secret("hunter2"))
    instance = "apiLoadBalancers: [{name: b, host: {ssh: {address: h, privateKeyFile: /k, user: w}}}]\n"
    (found,) = read(POOL + instance + state).deployed.recorded
    assert found.ssh == SshAccess(address="h", user="w", private_key_file="/k")
