"""The configuration: the origin of a value, and the messages about invalid ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lbagent import config
from lbagent.config import load
from lbagent.config.option_groups import grouped_options
from lbagent.config.schema import OPTIONS
from lbagent.errors import ConfigError


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "lbagent.yaml"
    path.write_text(text)
    return str(path)


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path, "reject-rate: 1\ntimeout-udp: 11\nsnat-ports: 2000-3000\n")
    loaded = config.load({"reject_rate": 3}, {"LBAGENT_REJECT_RATE": "2", "LBAGENT_TIMEOUT_UDP": "12"}, file)
    assert loaded.reject_rate == 3
    assert loaded.timeout_udp == 12
    assert loaded.snat_port_range == (2000, 3000)
    assert loaded.socket == "/run/lbagent/agent.sock"


def test_flags_not_given_do_not_hide_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "device: eth0\nexternal-clusterip: false\n")
    loaded = config.load({"device": (), "external_clusterip": None}, {}, file)
    assert loaded.device == ("eth0",)
    assert loaded.external_clusterip is False


def test_lists_in_all_three_places(tmp_path: Path) -> None:
    file = write(tmp_path, "pod-device: [veth*, cni0]\n")
    loaded = config.load({"device": ["a", "b"]}, {"LBAGENT_NODE_IP": "10.0.0.1, fd00::1"}, file)
    assert loaded.pod_device == ("veth*", "cni0")
    assert loaded.device == ("a", "b")
    assert loaded.node_ip == ("10.0.0.1", "fd00::1")


def test_the_file_is_named_by_the_environment_too(tmp_path: Path) -> None:
    file = write(tmp_path, "node-name: n7\n")
    assert config.load({}, {"LBAGENT_CONFIG": file}).name_of_node == "n7"


def test_an_empty_file_is_good(tmp_path: Path) -> None:
    assert config.load({}, {}, write(tmp_path, "# nothing\n")) == config.Config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\nnode_ip: [10.0.0.1]\n", (":2: ", "'node_ip'", "'node-ip'")),
        ("device: [eth0]\ndevice: [eth1]\n", (":2: ", "twice")),
        ("attach: native\n", (":1: attach", "xdp-generic", "native")),
        ("flow-table-size: 1000\n", ("flow-table-size", "power of two")),
        ("reject-rate: many\n", ("reject-rate", "many")),
        ("node-ip: 10.0.0.300\n", ("node-ip", "10.0.0.300")),
        ("device: a-name-that-is-too-long\n", ("device", "a-name-that-is-too-long")),
        ("snat-ports: 5000\n", ("snat-ports", "FIRST-LAST")),
        ("snat-ports: 5000-4000\n", ("snat-ports", "5000-4000")),
        ("snat-ports: 255-1000\n", ("snat-ports", "255-1000 begins below 256")),
        ("snat-address: [10.0.0.1, 10.0.0.300]\n", ("snat-address", "'10.0.0.300' is not an IP address")),
        ("snat-address: ['::']\n", (":1: snat-address", "'::' cannot be the source")),
        ("snat-address: [127.0.0.2]\n", ("snat-address", "'127.0.0.2' cannot be the source")),
        ("snat-address: ['fe80::1']\n", ("snat-address", "'fe80::1' cannot be the source")),
        (
            "snat-address: [10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5]\n",
            ("snat-address", "5 IPv4 addresses", "at most 4"),
        ),
        ("maglev-table-size: 16384\n", ("maglev-table-size", "16381")),
        ("maglev-table-size: 7\n", ("maglev-table-size", "251")),
        ("metrics-address: 127.0.0.1\n", ("metrics-address", "ADDRESS:PORT")),
        ("metrics-address: 127.0.0.1:99999\n", ("metrics-address", "99999")),
        ("metrics-address: ::1:9100\n", ("metrics-address", "[::1]:9100")),
        ("ui: true\n", (":1: ui", "no address for the page", "metrics-address")),
        ("metrics-address: 127.0.0.1:9100\nui-host: [lb]\n", (":2: ui-host", "only with ui")),
        ("max-backends: 2097152\n", ("max-backends", "2097152")),
        ("kubeconfig: /etc/k\nin-cluster: true\n", (":2: in-cluster", "one Kubernetes API")),
        ("max-delete-ratio: 101\n", (":1: max-delete-ratio", "101 is not a whole number from 0 to 100")),
        ("- a\n- b\n", (":1: ", "mapping")),
        ("a: [\n", ("not YAML",)),
        (
            "[" * 200_000 + "]" * 200_000 + "\n",
            (":1: ", "more than 64 levels"),
        ),  # PyYAML ends the process here
        ("device: [eth0]\n---\ndevice: [eth1]\n", (":2: ", "single document")),
        ("reject-rate: !!python/object:os.system x\n", (":1: reject-rate", "whole number", "'x'")),
        ("reject-rate: !!int x\n", (":1: reject-rate", "whole number", "'x'")),
        ("reject-rate: !!timestamp x\n", (":1: reject-rate", "whole number")),
        ("reject-rate: 2024-01-01\n", (":1: reject-rate", "whole number", "2024-01-01")),
        ("reject-rate:\n", (":1: reject-rate", "whole number", "nothing")),
        ("reject-rate: [1]\n", (":1: reject-rate", "whole number")),
        ("reject-rate: &a [*a]\n", (":1: reject-rate", "whole number")),
        ("reject-rate: 2000000\n", (":1: reject-rate", "1000000", "2000000")),
        ("external-clusterip: !!bool x\n", (":1: external-clusterip", "true or false")),
        ("external-clusterip: 1\n", (":1: external-clusterip", "1 is not true or false")),
        ("device: [a, {b: c}]\n", (":1: device", "list of texts")),
        ("device: [a, null]\n", (":1: device", "list of texts")),
        ("device: {a: b}\n", (":1: device", "list of texts", "a mapping")),
        ("socket: [a]\n", (":1: socket", "a text")),
        ("? [a]\n: b\n", (":1: ", "unknown key")),
        ("{a: b}: c\n", (":1: ", "unknown key")),
        ("<<: {device: b}\n", (":1: ", "unknown key")),
        ("synthetic: 5\n", (":1: synthetic", "SERVICES:BACKENDS")),
        ("bpffs:\n", (":1: bpffs", "empty")),
        ("state-dir: ''\n", (":1: state-dir", "empty")),
        ("socket: ''\n", (":1: socket", "empty")),
    ],
)
def test_what_the_file_may_not_say(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        config.load({}, {}, file)
    message = str(caught.value)
    assert message.startswith(file)
    assert "\n" not in message
    for word in words:
        assert word in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("reject-rate: many", "reject-rate: 'many' is not a whole number"),
        ("reject-rate: '80'", "reject-rate: '80' is not a whole number"),
        ("reject-rate: 1.5", "reject-rate: 1.5 is not a whole number"),
        ("reject-rate: true", "reject-rate: true is not a whole number"),
        ("reject-rate:", "reject-rate: a whole number is wanted, not nothing"),
        ("reject-rate: [1]", "reject-rate: a whole number is wanted, not a list"),
        ("reject-rate: {a: 1}", "reject-rate: a whole number is wanted, not a mapping"),
        ("reject-rate: -1", "reject-rate: -1 is not a whole number from 0 to 1000000"),
        ("external-clusterip: 'no'", "external-clusterip: 'no' is not true or false"),
        ("external-clusterip: 0", "external-clusterip: 0 is not true or false"),
        ("external-clusterip: [true]", "external-clusterip: true or false is wanted, not a list"),
        ("socket: [a]", "socket: a text is wanted, not a list"),
        ("socket: {a: b}", "socket: a text is wanted, not a mapping"),
        ("attach: native", "attach: 'native' is not possible; use one of auto, xdp, xdp-generic, tc"),
        ("attach: [tc]", "attach: a word is wanted, not a list"),
        ("device: {a: b}", "device: a text or a list of texts is wanted, not a mapping"),
        ("device: [a, {b: c}]", "device: a text or a list of texts is wanted, and one item is a mapping"),
        ("device: [a, null]", "device: a text or a list of texts is wanted, and one item is nothing"),
        ("[device]", "a mapping of keys to values is wanted, not a list"),
        ("eth0", "a mapping of keys to values is wanted, not 'eth0'"),
    ],
)
def test_a_wrong_value_is_shown_in_usual_words(tmp_path: Path, text: str, sentence: str) -> None:
    file = write(tmp_path, f"\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        config.load({}, {}, file)
    assert str(caught.value) == f"{file}:2: {sentence}"


def test_a_bad_flag_and_a_bad_variable_are_named_as_such() -> None:
    with pytest.raises(ConfigError, match=r"^--flow-table-size: 7 "):
        config.load({"flow_table_size": 7}, {})
    with pytest.raises(ConfigError, match=r"^LBAGENT_REJECT_RATE: 'x' is not a whole number"):
        config.load({}, {"LBAGENT_REJECT_RATE": "x"})
    with pytest.raises(ConfigError, match=r"^LBAGENT_EXTERNAL_CLUSTERIP: 'maybe'"):
        config.load({}, {"LBAGENT_EXTERNAL_CLUSTERIP": "maybe"})


def test_every_fault_is_named_at_once(tmp_path: Path) -> None:
    """Of the file, the environment and the flags; a line each, in this order, then checks beyond the types."""
    file = tmp_path / "a.yaml"
    file.write_text(
        "max-backends: 1000\nlog-levle: info\nattach: xpd\ntimeout-new: soon\nattach: tc\nnode-ip: [10.0.0.300]\nreject-rate: -1\n"
    )
    with pytest.raises(ConfigError) as raised:
        load(
            {"snat_ports": "1-2", "timeout_tcp": 5},
            {"LBAGENT_SWEEP_INTERVAL": "x", "LBAGENT_TIMEOUT_CLOSING": "5"},
            str(file),
        )
    lines = [line.replace(f"{file}:", "FILE:") for line in str(raised.value).splitlines()]
    assert [line.split(": ")[0] for line in lines[:3]] == ["FILE:2", "FILE:4", "FILE:5"]
    assert lines[3].startswith("LBAGENT_SWEEP_INTERVAL: ")
    assert sorted(line.split(" is ")[0] for line in lines[4:7]) == [
        "--timeout-tcp: 5", "FILE:3: attach: 'xpd'", "FILE:7: reject-rate: -1",
    ]  # fmt: skip
    assert [line.split(" is ")[0].split(" begins")[0] for line in lines[7:]] == [
        "FILE:1: max-backends: 1000", "FILE:6: node-ip: '10.0.0.300'", "--snat-ports: 1-2",
    ]  # fmt: skip


def test_a_tab_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("log-level: info\nnode-ip:\n\t- 10.0.0.1\n")
    with pytest.raises(ConfigError, match=r"a\.yaml:3: not YAML: the indentation has a tab; YAML takes spaces alone"):
        load({}, {}, str(file))


def test_every_option_is_in_one_group() -> None:
    grouped = [option.key for group in grouped_options().values() for option in group]
    assert sorted(grouped) == sorted(option.key for option in OPTIONS)


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere\.yaml"):
        config.load({}, {}, "/nowhere.yaml")


def test_every_key_has_flag_variable_and_help() -> None:
    names = {option.flag: option.env for option in config.options()}
    assert names["--node-ip"] == "LBAGENT_NODE_IP"
    wanted = "manifests device node-name socket bpffs attach pod-device snat-ports flow-table-size"
    assert {f"--{word}" for word in wanted.split()} <= names.keys()
    assert all(option.help for option in config.options())
    assert {option.field for option in config.options()} >= config.RELOADABLE


@pytest.mark.parametrize("text", ["127.0.0.1:9100", "[::1]:9100", "0.0.0.0:0"])
def test_metrics_addresses(text: str) -> None:
    assert config.load({"metrics_address": text}, {}).metrics_address == text


@pytest.mark.parametrize(
    ("given", "healthz", "metrics"),
    [
        ({}, (), ()),
        ({"kubeconfig": "k"}, ("0.0.0.0:10256", "[::]:10256"), ("127.0.0.1:10249",)),
        ({"in_cluster": True}, ("0.0.0.0:10256", "[::]:10256"), ("127.0.0.1:10249",)),
        ({"kubeconfig": "k", "healthz_bind_address": "", "metrics_bind_address": ""}, (), ()),
        ({"healthz_bind_address": "[::1]:1", "metrics_bind_address": "0.0.0.0:2"}, ("[::1]:1",), ("0.0.0.0:2",)),
        ({"kubeconfig": "k", "metrics_address": "127.0.0.1:9100"}, ("0.0.0.0:10256", "[::]:10256"), ()),
    ],
)
def test_a9_kube_proxys_ports(given: dict[str, object], healthz: tuple[str, ...], metrics: tuple[str, ...]) -> None:
    """Off without a Kubernetes API; metrics-address is the same setting as metrics-bind-address."""
    found = config.load(given, {})
    assert (found.healthz_listen_addresses, found.metrics_listen_addresses) == (healthz, metrics)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kubeconfig": "k"}, "--node-liveness: udp needs liveness-key-file, too"),
        ({"liveness_key_file": "f"}, "--node-liveness: udp needs a Kubernetes API"),
        ({"kubeconfig": "k", "liveness_key_file": "f", "shadow": True}, "an agent with shadow changes nothing"),
    ],
)
def test_liveness_needs_a_key_and_an_api(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as raised:
        config.load({"node_liveness": "udp", **given}, {})
    assert raised.value.exit_code == 2
    assert (
        config.load({"node_liveness": "udp", "in_cluster": True, "liveness_key_file": "f"}, {}).liveness_port == 10257
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"healthz_bind_address": "10256"}, "--healthz-bind-address: '10256' is not ADDRESS:PORT"),
        ({"metrics_bind_address": "localhost:1"}, "--metrics-bind-address: 'localhost:1' is not ADDRESS:PORT"),
        ({"metrics_bind_address": "127.0.0.1:1", "metrics_address": "127.0.0.1:2"}, "they are one setting"),
        ({"nodeport_addresses": ("primary", "10.0.0.0/8")}, "primary cannot be combined with ranges"),
        ({"nodeport_addresses": ("10.0.0.1",)}, "--nodeport-addresses: '10.0.0.1' is not a range"),
        ({"external_ip_cidr": ("10.0.0.0/8", "10.0.0.1")}, "--external-ip-cidr: '10.0.0.1' is not a range"),
        (
            {"external_ip_cidr": ("203.0.113.0/33",)},
            "--external-ip-cidr: '203.0.113.0/33' has a prefix length outside 0-32",
        ),
        ({"exclude": ("10.0.0.0/8", "10.0.0.1/32:0")}, "--exclude: '0' in '10.0.0.1/32:0' is not a port of 1-65535"),
    ],
)
def test_kube_proxys_settings_that_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        config.load(given, {})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"egress_snat": "on"}, "--egress-snat: it is for an agent that serves no Services: give --no-services, too"),
        ({"services": False, "cluster_cidr": ("10.244.0.0/16",)}, "--cluster-cidr: it has an effect only with"),
        ({"services": False, "egress_snat": "on", "cluster_cidr": ("10.244.0.0/33",)}, "a prefix length outside 0-32"),
        (
            {"services": False, "egress_snat": "on", "shadow": True},
            "--egress-snat: an agent with shadow changes nothing",
        ),
    ],
)
def test_settings_of_egress_snat_that_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        config.load(given, {})


KUBE_PROXYS = {
    "hostname-override": ("node_name", "n7", "n7"),
    "conntrack-tcp-timeout-established": ("timeout_tcp", "2h0m0s", 7200),
    "conntrack-udp-timeout-stream": ("timeout_udp", "180s", 180),
}


def test_kube_proxys_names_are_those_of_settings_that_mean_the_same() -> None:
    """Its other time-outs are not: half-closed TCP flows, and UDP flows without a reply, have times of their own."""
    found = {option.other_name: option.field for option in config.options() if option.other_name}
    assert found == {name: field for name, (field, _, _) in KUBE_PROXYS.items()}


@pytest.mark.parametrize("name", KUBE_PROXYS)
def test_kube_proxys_names_in_every_place(tmp_path: Path, name: str) -> None:
    field, text, value = KUBE_PROXYS[name]
    word = name.replace("-", "_")
    for loaded in (
        config.load({word: value}, {}),
        config.load({}, {f"LBAGENT_{word.upper()}": text}),
        config.load({}, {}, write(tmp_path, f"{name}: {text}\n")),
    ):
        assert getattr(loaded, field) == value


@pytest.mark.parametrize(
    ("name", "where"), [(name, where) for name in KUBE_PROXYS for where in ("flag", "env", "file")]
)
def test_two_names_of_one_setting_are_refused_together(tmp_path: Path, name: str, where: str) -> None:
    field, text, value = KUBE_PROXYS[name]
    own, other = field.replace("_", "-"), name.replace("-", "_")
    given: dict[str, tuple[dict[str, object], dict[str, str], str]] = {
        "flag": ({field: value, other: value}, {}, ""),
        "env": ({}, {f"LBAGENT_{field.upper()}": text, f"LBAGENT_{other.upper()}": text}, ""),
        "file": ({}, {}, write(tmp_path, f"{own}: {text}\n{name}: {text}\n") if where == "file" else ""),
    }
    with pytest.raises(ConfigError, match=r"they are one setting|given twice \(first at .*:1: " + own):
        config.load(*given[where])


def test_a_name_beats_another_by_where_it_is_given(tmp_path: Path) -> None:
    file = write(tmp_path, "timeout-tcp: 1h\n")
    assert config.load({"conntrack_tcp_timeout_established": 60}, {}, file).timeout_tcp == 60
    assert config.load({}, {}, file).timeout_tcp == 3600


def test_kube_proxys_own_default_is_more_than_is_possible() -> None:
    with pytest.raises(
        ConfigError, match=r"^LBAGENT_CONNTRACK_TCP_TIMEOUT_ESTABLISHED: 86400 is not a whole number from 30"
    ):
        config.load({}, {"LBAGENT_CONNTRACK_TCP_TIMEOUT_ESTABLISHED": "24h0m0s"})
