"""Pool files: inheritance, defaults, and all errors at once with file, line and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from lbagent.apilb.files.pool_document import PoolFaults
from lbagent.apilb.files.pool_files import PoolFiles, default_state_path, read_pool_files
from lbagent.apilb.instance import Mode, OnMarkedDown, Secret, SshAccess
from lbagent.apilb.native_file import native_file
from lbagent.probes.probe_spec import ProbeSpec
from tests.apilb.pool_texts import parse_pool_text

AGENT = {"SSH_AUTH_SOCK": "/run/agent"}
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----\n"


def read(text: str) -> PoolFiles:
    return parse_pool_text(text, "p.yaml", environ=AGENT)


def faults(text: str, environ: dict[str, str] = AGENT) -> list[str]:
    with pytest.raises(PoolFaults) as caught:
        parse_pool_text(text, "p.yaml", environ=environ)
    return [str(each) for each in caught.value.faults]


def resolved(text: str) -> dict[str, Any]:
    (found,) = read(text).instances
    return msgspec.structs.asdict(found)


BASE = "bindAddress: 0.0.0.0:6443\nservers: [10.0.0.2:6443]\n"
DEFAULTS = {
    "pool": "default",
    "name": "api-loadbalancer-haproxy",
    "image": "haproxy:3.0.4-alpine",
    "mode": Mode.HAPROXY,
    "bind_address": "0.0.0.0:6443",
    "servers": ("10.0.0.2:6443",),
    "host_config_path": "/etc/haproxy/haproxy.cfg",
    "ssh": None,
    "health_check": None,
    "on_marked_down": OnMarkedDown.KEEP,
    "docker_host": "unix:///var/run/docker.sock",
    "post_start": (),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("apiLoadBalancers: [{}]", {}, id="nothing said"),
        pytest.param("apiLoadBalancers:\n-", {}, id="an entry that is null"),
        pytest.param("image: a:1\napiLoadBalancers: [{}]", {"image": "a:1"}, id="image of the pool"),
        pytest.param("image: a:1\napiLoadBalancers: [{image: b:2}]", {"image": "b:2"}, id="the instance wins"),
        pytest.param("image: a:1\napiLoadBalancers: [{image: ''}]", {"image": "a:1"}, id="an empty text is not given"),
        pytest.param("apiLoadBalancers: [{servers: [a, 'b:1']}]", {"servers": ("a", "b:1")}, id="servers are replaced"),
        pytest.param("apiLoadBalancers: [{servers: []}]", {}, id="an empty list is not given"),
        pytest.param("name: n\nhostConfigPath: /a/b\napiLoadBalancers: [{}]", {"name": "n", "host_config_path": "/a/b"}, id="pool"),
        pytest.param("apiLoadBalancers: [{bindAddress: ':7443'}]", {"bind_address": ":7443"}, id="bind without address"),
        pytest.param(
            "mode: native\napiLoadBalancers: [{name: x}]",
            {"mode": Mode.NATIVE, "name": "x", "host_config_path": "/etc/lbagent/apilb.d/x.yaml", "on_marked_down": OnMarkedDown.RESET},
            id="native has defaults of its own",
        ),
        pytest.param("onMarkedDown: reset\napiLoadBalancers: [{onMarkedDown: keep}]", {}, id="on marked down"),
        pytest.param(
            "healthCheck: {path: /readyz, interval: 250ms}\napiLoadBalancers: [{healthCheck: {interval: 1m30s, fall: 5}}]",
            {"health_check": ProbeSpec(path="/readyz", interval=90, fall=5)},
            id="health check, field by field",
        ),
        pytest.param(
            "runtime: {docker: {host: 'unix:///run/podman.sock'}}\npostStart: [logger, up]\napiLoadBalancers: [{}]",
            {"docker_host": "unix:///run/podman.sock", "post_start": ("logger", "up")},
            id="runtime and hook",
        ),
        pytest.param(
            "ssh: {address: a, user: core, port: 2222}\napiLoadBalancers: [{}]",
            {"ssh": SshAccess(address="a", user="core", port=2222)},
            id="ssh of the pool alone",
        ),
        pytest.param(
            "ssh: {user: core, password: x, retryTimeout: 10s, port: 0}\napiLoadBalancers: [{host: {ssh: {address: b, user: me}}}]",
            {"ssh": SshAccess(address="b", user="me", password=Secret("x"), retry_timeout=10)},
            id="ssh, field by field",
        ),
        pytest.param("ssh: {address: a}\napiLoadBalancers: [{host: {direct: {}}}]", {}, id="direct, said"),
        pytest.param("apiLoadBalancers: [{host: {}}]", {}, id="an empty host"),
        pytest.param(
            "apiLoadBalancers: [{host: {ssh: {address: 'fd00::1', connectionTimeout: 5, insecureIgnoreHostKey: true}}}]",
            {"ssh": SshAccess(address="fd00::1", connection_timeout=5, insecure_ignore_host_key=True)},
            id="a number of seconds",
        ),
    ],
)  # fmt: skip
def test_an_instance_is_what_it_and_its_pool_say(text: str, expected: dict[str, Any]) -> None:
    assert resolved(f"{text}\n{BASE}" if "\n-" not in text else f"{BASE}{text}\n") == DEFAULTS | expected


def test_the_seeds_own_files_are_accepted() -> None:
    """Its integration test has keys that it does not support itself."""
    key = KEY.replace("\n", "\n    ").rstrip()
    text = f"""\
servers:
- 10.0.0.2
bindAddress: 0.0.0.0:7443
apiLoadBalancers:
- metricsBindAddress: 0.0.0.0
  host:
    ssh:
      address: localhost
ssh:
  user: core
  privateKey: |-
    {key}
"""
    found = parse_pool_text(text, "p.yaml", environ={})
    (instance,) = found.instances
    assert instance.host == "ssh://core@localhost:22"
    assert instance.ssh is not None
    assert instance.ssh.private_key == Secret(KEY.rstrip())
    assert [str(each) for each in found.warnings] == [
        "p.yaml:5: apiLoadBalancers[0].metricsBindAddress: unknown key; did you mean 'bindAddress'?"
    ]
    assert "b3Blbn" not in repr(found)


def test_pools_with_names() -> None:
    text = """\
apiLoadBalancerPools:
  one:
    bindAddress: 127.0.0.1:7443
    servers: [a]
    apiLoadBalancers: [{}]
  two:
    apiLoadBalancers:
    - {name: b, bindAddress: "[::1]:7443", servers: [a], hostConfigPath: /b/b.cfg}
    - {host: {ssh: {address: h}}, bindAddress: 127.0.0.1:7443, servers: [a]}
"""
    found = read(text)
    assert found.pools == ("one", "two")
    assert [each.key for each in found.instances] == [
        ("one", "api-loadbalancer-haproxy", "direct"),
        ("two", "b", "direct"),
        ("two", "api-loadbalancer-haproxy", "ssh://root@h:22"),
    ]
    assert not found.one_pool


def test_mode_of_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(BASE + "apiLoadBalancers: [{mode: haproxy}]\n")
    (found,) = read_pool_files([str(path)], mode=Mode.NATIVE).instances
    assert (found.mode, found.on_marked_down) == (Mode.NATIVE, OnMarkedDown.RESET)
    assert found.host_config_path == "/etc/lbagent/apilb.d/api-loadbalancer-haproxy.yaml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["p.yaml:1: apiLoadBalancers: at least one load balancer must be defined if state is empty"]),
        ("servers: [a]\nstate: {}", ["p.yaml:1: apiLoadBalancers: at least one load balancer must be defined if state is empty"]),
        ("apiLoadBalancerPools: {p: }", ["p.yaml:1: apiLoadBalancerPools.p.apiLoadBalancers: at least one load balancer must be defined if state is empty"]),
        ("apiLoadBalancers: [{bindAddress: 'a:1'}]", ["p.yaml:1: apiLoadBalancers[0].servers: at least one server must be set"]),
        ("apiLoadBalancers:\n- servers: [a]", ["p.yaml:2: apiLoadBalancers[0].bindAddress: bindAddress can't be empty"]),
        ("apiLoadBalancers:\n- {}", [
            "p.yaml:2: apiLoadBalancers[0].servers: at least one server must be set",
            "p.yaml:2: apiLoadBalancers[0].bindAddress: bindAddress can't be empty",
        ]),
        (BASE + "apiLoadBalancers:\n- host: {direct: {}, ssh: {address: a}}", ["p.yaml:4: apiLoadBalancers[0].host: host must have only one transport method defined"]),
        (BASE + "ssh: {user: a}\napiLoadBalancers:\n- {}", ["p.yaml:5: apiLoadBalancers[0].host.ssh.address: address must be set"]),
        (BASE + "apiLoadBalancers:\n- name: 5\n  image: [a]\n  mode: nativ\n  host: here", [
            "p.yaml:4: apiLoadBalancers[0].name: 5 is not a text",
            "p.yaml:5: apiLoadBalancers[0].image: a text is wanted, not a list",
            "p.yaml:6: apiLoadBalancers[0].mode: unknown value 'nativ'; one of haproxy, native is possible",
            "p.yaml:7: apiLoadBalancers[0].host: 'here' is not a mapping",
        ]),
        ("bindAddress: 1.2.3.4\nservers: [a:0, '10.0.0.256:1', 'b c', '[a]:1', 'x:70000']\napiLoadBalancers: [{}]", [
            "p.yaml:1: bindAddress: '1.2.3.4' is not ADDRESS:PORT",
            *(f"p.yaml:2: servers[{at}]: '{each}' is not HOST[:PORT]" for at, each in enumerate(["a:0", "10.0.0.256:1", "b c", "[a]:1", "x:70000"])),
        ]),
        (BASE + "ssh: {address: a, connectionTimeout: 1x, retryTimeout: [], retryInterval: -1s, port: 70000, hostKey: ssh-rsa}\napiLoadBalancers: [{}]", [
            "p.yaml:3: ssh.port: 70000 is not in 1-65535",
            "p.yaml:3: ssh.connectionTimeout: '1x' is not a time like 2s, 300ms or 1h",
            "p.yaml:3: ssh.retryTimeout: a time like 2s, 300ms or 1h is wanted, not a list",
            "p.yaml:3: ssh.retryInterval: '-1s' is not a time like 2s, 300ms or 1h",
            "p.yaml:3: ssh.hostKey: 'ssh-rsa' is not a host key like 'ssh-ed25519 AAAA...'",
        ]),
        (BASE + "healthCheck: {path: healthz, interval: 1ms, fall: 0, rise: x, caFile: a, host: 'a b'}\napiLoadBalancers: [{}]", [
            "p.yaml:3: healthCheck.path: 'healthz' is not a path like /healthz",
            "p.yaml:3: healthCheck.interval: '1ms' is not in 0.01s-86400s",
            "p.yaml:3: healthCheck.fall: 0 is not in 1-1000",
            "p.yaml:3: healthCheck.rise: 'x' is not a whole number",
            "p.yaml:3: healthCheck.caFile: 'a' is not an absolute path without blanks and quotes",
            "p.yaml:3: healthCheck.host: 'a b' is not a host name",
        ]),
        (BASE + "hostConfigPath: /etc/haproxy/\nruntime: {docker: {host: 'tcp://a'}}\npostStart: ['']\napiLoadBalancers: [{hostConfigPath: /x}]", [
            "p.yaml:3: hostConfigPath: '/etc/haproxy/' is a folder; give the path of a file",
            "p.yaml:4: runtime.docker.host: 'tcp://a' is not unix:///PATH",
            "p.yaml:5: postStart[0]: an argument is empty, or contains a NUL",
            "p.yaml:6: apiLoadBalancers[0].hostConfigPath: '/x' is in the root folder; give a file in a folder that can be mounted into a container",
        ]),
        ("mode: native\nbindAddress: localhost:1\nservers: [a]\napiLoadBalancers: [{}]", ["p.yaml:2: bindAddress: 'localhost:1': native mode needs an address, not a name"]),
        ("a: [", ["p.yaml:1: not YAML: while parsing a flow node did not find expected node content"]),
        ("[]", ["p.yaml:1: a mapping is wanted, not a list"]),
        ("{}\n---\n{}", ["p.yaml:3: one document is wanted, not 2"]),
        (BASE + "apiLoadBalancers: [{}, {name: b, bindAddress: '*:6443', hostConfigPath: /etc/./haproxy/haproxy.cfg}]", [
            "p.yaml:3: apiLoadBalancers[1].hostConfigPath: '/etc/./haproxy/haproxy.cfg' is that of apiLoadBalancers[0] too, on the same host (direct)",
            "p.yaml:3: apiLoadBalancers[1].bindAddress: '*:6443' is that of apiLoadBalancers[0] too, on the same host (direct)",
        ]),
        (BASE + "apiLoadBalancers:\n- host: {ssh: {address: a}}\n- {host: {ssh: {address: a, user: b}}, bindAddress: 'a:1', hostConfigPath: /a/b}\n- host: {ssh: {address: a, port: 23}}", [
            "p.yaml:5: apiLoadBalancers[1].name: 'api-loadbalancer-haproxy' is that of apiLoadBalancers[0] too, on the same host (ssh://b@a:22)",
        ]),
    ],
)  # fmt: skip
def test_every_fault_at_once(text: str, expected: list[str]) -> None:
    assert faults(text) == expected


@pytest.mark.parametrize("number", ["9" * 399, "-" + "9" * 399, "1e400", ".inf", "0x" + "f" * 300, "true", "0.5"])
def test_numbers_that_are_none_of_ours(number: str) -> None:
    for key in (
        "ssh: {address: a, retryTimeout: %s}",
        "ssh: {address: a, port: %s}",
        "healthCheck: {interval: %s}",
        "name: %s",
    ):
        assert len(faults(BASE + "apiLoadBalancers: [{}]\n" + key % number)) == 1


def test_the_fault_of_a_pool_is_said_once_and_is_not_a_missing_field_too() -> None:
    text = "bindAddress: x\nservers: [':']\napiLoadBalancers: [{}, {}, {}]"
    assert faults(text) == [
        "p.yaml:1: bindAddress: 'x' is not ADDRESS:PORT",
        "p.yaml:2: servers[0]: ':' is not HOST[:PORT]",
    ]


def test_ssh_needs_a_way_to_log_in() -> None:
    text = BASE + "apiLoadBalancers:\n- host: {ssh: {address: a}}"
    assert faults(text, environ={}) == [
        "p.yaml:4: apiLoadBalancers[0].host.ssh: one of password, privateKey and privateKeyFile must be set, or an agent in SSH_AUTH_SOCK"
    ]
    for way in ("password: x", "privateKeyFile: /k"):
        assert parse_pool_text(text.replace("address: a", f"address: a, {way}"), "p", environ={}).instances


@pytest.mark.parametrize(
    "ssh",
    [
        "password: 8675309",
        "password: [hunter2]",
        "password: *hunter2",
        "privateKey: hunter2",
        "privateKey: '-----BEGIN RSA PRIVATE KEY-----\n\nhunter2!\n\n-----END RSA PRIVATE KEY-----'",
        "password: %hunter2",
        "password: a: hunter2",
    ],
)  # fmt: skip
def test_no_fault_shows_a_secret(ssh: str) -> None:
    found = "\n".join(faults(BASE + "apiLoadBalancers: [{}]\nssh:\n  address: a\n  " + ssh))
    assert "hunter2" not in found
    assert "8675309" not in found


def test_strict_makes_faults_of_unknown_keys(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        BASE + "bindAdress: x\napiLoadBalancers: [{host: {ssl: {}}, healthCheck: {fail: 1}}]\nssh: {adress: a}\n"
    )
    with pytest.raises(PoolFaults) as caught:
        read_pool_files([str(path)], strict=True, environ=AGENT)
    assert [str(each).removeprefix(f"{path}:") for each in caught.value.faults] == [
        "3: bindAdress: unknown key; did you mean 'bindAddress'?",
        "4: apiLoadBalancers[0].host.ssh.address: address must be set",
        "4: apiLoadBalancers[0].healthCheck.fail: unknown key; did you mean 'fall'?",
        "4: apiLoadBalancers[0].host.ssl: unknown key; did you mean 'ssh'?",
        "5: ssh.adress: unknown key; did you mean 'address'?",
    ]


def test_files_are_one_document(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("servers: [a]\napiLoadBalancers: [{}]\n")
    two.write_text("# more\nbindAddress: 127.0.0.1:1\n")
    (found,) = read_pool_files([str(one), str(two)]).instances
    assert (found.servers, found.bind_address) == (("a",), "127.0.0.1:1")
    two.write_text("# more\n\nservers: [b]\n")
    with pytest.raises(PoolFaults) as caught:
        read_pool_files([str(one), str(two), str(tmp_path), str(tmp_path / "none")], any_file=True)
    assert [str(each) for each in caught.value.faults] == [
        f"{two}:3: servers: {one} has it already; all files are one document",
        f"{tmp_path}: cannot be read: Is a directory",
        f"{tmp_path / 'none'}: cannot be read: No such file or directory",
    ]


def test_where_the_state_file_is() -> None:
    assert default_state_path(["/a/config.yaml", "/b/c.yaml"]) == "/a/state.yaml"
    assert default_state_path(["config.yaml"]) == "state.yaml"
    assert default_state_path(["-"]) == "state.yaml"
    assert default_state_path(["-", "/b/c.yaml"]) == "/b/state.yaml"


def test_the_native_file_is_read_back() -> None:
    text = """\
apiLoadBalancerPools:
  "a.b":
    mode: native
    bindAddress: "[::]:6443"
    servers: [a, "[fd00::1]:6443"]
    healthCheck: {interval: 1m0.25s, timeout: 333ms, caFile: /etc/ca.pem}
    apiLoadBalancers: [{name: n, onMarkedDown: keep, hostConfigPath: /etc/lbagent/apilb.d/n.yaml}]
"""
    (instance,) = read(text).instances
    found = parse_pool_text(native_file(instance), "n.yaml", environ={})
    assert found.instances == (instance,)
    assert found.warnings == ()
