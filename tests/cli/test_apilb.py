"""`lbagent apilb`: commands without a host: show, render, plan --offline, export --offline; errors and confirmations."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from lbagent.apilb.files.pool_files import read_pool_files
from lbagent.apilb.files.state_file import Deployed, state_text
from lbagent.apilb.instance_plan import found_instance, wanted_text
from lbagent.apilb.plan_records import Observed
from tests.apilb.pool_texts import parse_pool_text
from tests.cli.conftest import Run

CONFIG = """\
apiLoadBalancerPools:
  one:
    bindAddress: 127.0.0.1:7443
    servers: [10.0.0.1:6443, 10.0.0.2]
    apiLoadBalancers:
    - {}
    - {name: b, mode: native, bindAddress: "[::1]:7443"}
  two:
    ssh: {user: core, password: hunter2, retryTimeout: 90s, retryInterval: 250ms}
    apiLoadBalancers:
    - {bindAddress: 0.0.0.0:6443, servers: [a.example:6443], onMarkedDown: reset, host: {ssh: {address: 10.1.1.1, port: 2222}}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def write_state(config: Path, *names: str) -> Path:
    """Write the state of an apply that made the instances of these names."""
    recorded = []
    for each in read_pool_files([str(config)]).instances:
        if each.name in names:
            seen = Observed(container_id="id", status="running", image=each.image, file_text=wanted_text(each))
            recorded.append(found_instance(each, seen))
    path = config.parent / "state.yaml"
    path.write_text(state_text(Deployed(recorded=tuple(recorded)), one_pool=False))
    return path


def test_show(lb: Run, config: Path) -> None:
    done = lb("apilb", "show", "-f", str(config), "-o", "json")
    assert (done.code, done.err) == (0, "")
    rows = json.loads(done.out)
    check = {
        "path": "/healthz",
        "interval": "2s",
        "timeout": "2s",
        "fall": 3,
        "rise": 2,
        "caFile": "",
        "host": "kube-apiserver",
    }
    assert rows[0] == {
        "pool": "one", "name": "api-loadbalancer-haproxy", "image": "haproxy:3.0.4-alpine", "mode": "haproxy",
        "bindAddress": "127.0.0.1:7443", "servers": ["10.0.0.1:6443", "10.0.0.2"], "hostConfigPath": "/etc/haproxy/haproxy.cfg",
        "host": {"direct": {}}, "healthCheck": check, "onMarkedDown": "keep",
    }  # fmt: skip
    assert (rows[1]["mode"], rows[1]["hostConfigPath"], rows[1]["onMarkedDown"]) == (
        "native", "/etc/lbagent/apilb.d/b.yaml", "reset",
    )  # fmt: skip
    assert rows[2]["host"] == {
        "ssh": {
            "address": "10.1.1.1", "user": "core", "port": 2222, "connectionTimeout": "30s", "retryTimeout": "90s",
            "retryInterval": "250ms",
        },
    }  # fmt: skip


def test_show_of_a_pool_and_as_a_table(lb: Run, config: Path) -> None:
    assert lb("apilb", "show", "two", "-f", str(config), "-o", "name").out == "two/api-loadbalancer-haproxy\n"
    table = lb("apilb", "show", "-f", str(config), "--mode", "native").out
    assert table.splitlines()[0].split() == ["POOL", "NAME", "MODE", "BIND", "SERVERS", "HOST"]
    assert table.count("native") == 3
    done = lb("apilb", "show", "three", "-f", str(config))
    assert (done.code, done.err) == (
        3,
        "error: there is no pool three, neither in the files nor in the state; there are: one, two\n",
    )
    done = lb("apilb", "render", "one", "-f", str(config), "--instance", "c")
    assert (done.code, "there is no instance c in pool one; there are: api-loadbalancer-haproxy, b" in done.err) == (
        3,
        True,
    )


@pytest.mark.parametrize("verb", [
    ("show",), ("show", "-o", "json"), ("show", "-o", "wide"), ("render",), ("plan", "--offline"), ("plan", "--offline", "-o", "json"),
    ("export", "--offline"),
])  # fmt: skip
def test_no_secret_is_shown(lb: Run, config: Path, verb: tuple[str, ...]) -> None:
    write_state(config, "api-loadbalancer-haproxy")
    done = lb("apilb", *verb, "-f", str(config))
    assert done.code in (0, 1)
    assert done.out
    assert "hunter2" not in done.out + done.err


def test_render(lb: Run, config: Path) -> None:
    done = lb("apilb", "render", "-f", str(config), "one", "--instance", "api-loadbalancer-haproxy")
    assert done.code == 0
    assert done.out.startswith("defaults\n  mode tcp\n")
    assert "  bind 127.0.0.1:7443\n" in done.out
    lines = lb("apilb", "render", "-f", str(config)).out.splitlines()
    assert [line for line in lines if line.startswith("# ") and " on " in line] == [
        "# one/api-loadbalancer-haproxy on direct", "# one/b on direct", "# two/api-loadbalancer-haproxy on ssh://core@10.1.1.1:2222",
    ]  # fmt: skip
    assert lb("apilb", "render", "-f", str(config), "--instance", "c").code == 3


def test_render_of_native_mode_is_what_apply_writes(lb: Run, config: Path) -> None:
    done = lb("apilb", "render", "-f", str(config), "--instance", "b")
    assert (done.code, done.err) == (0, "")
    (native,) = [each for each in read_pool_files([str(config)]).instances if each.name == "b"]
    assert done.out == wanted_text(native)
    (again,) = parse_pool_text(done.out, "b.yaml").instances
    assert (again.mode, again.bind_address, again.servers) == (native.mode, native.bind_address, native.servers)


def test_faults_are_a_line_each(lb: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("servers: [':']\nmode: x\napiLoadBalancers: [{}]\n")
    for verb in ("show", "render", "plan", "apply", "destroy", "export", "status"):
        done = lb("apilb", verb, "-f", str(path))
        assert (done.code, done.out, done.err.splitlines()) == (2, "", [
            f"{path}:1: servers[0]: ':' is not HOST[:PORT]",
            f"{path}:2: mode: unknown value 'x'; one of haproxy, native is possible",
            f"{path}:3: apiLoadBalancers[0].bindAddress: bindAddress can't be empty",
        ])  # fmt: skip


def test_unknown_keys(lb: Run, config: Path) -> None:
    config.write_text(CONFIG + "noop: true\n")
    done = lb("apilb", "show", "-f", str(config), "-o", "name")
    assert (done.code, done.err) == (0, f"warning: {config}:12: noop: unknown key\n")
    done = lb("apilb", "show", "-f", str(config), "--strict")
    assert (done.code, done.out, done.err) == (2, "", f"{config}:12: noop: unknown key\n")


def test_stdin(lb: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(CONFIG.encode())))
    assert lb("apilb", "show", "two", "-f", "-", "-o", "name").out == "two/api-loadbalancer-haproxy\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"mode: x")))
    done = lb("apilb", "show", "-f", "-")
    assert done.code == 2
    assert done.err.startswith("stdin:1: mode: unknown value 'x'")


def test_plan_offline(lb: Run, config: Path) -> None:
    def plan(*more: str) -> tuple[int, list[tuple[str, str, str]]]:
        done = lb("apilb", "plan", "--offline", "-f", str(config), "-o", "json", *more)
        return done.code, [(each["pool"], each["name"], each["action"]) for each in json.loads(done.out)]

    name = "api-loadbalancer-haproxy"
    assert plan() == (1, [("one", name, "create"), ("one", "b", "create"), ("two", name, "create")])
    write_state(config, name, "b")
    assert plan() == (0, [("one", name, "none"), ("one", "b", "none"), ("two", name, "none")])
    done = lb("apilb", "plan", "--offline", "-f", str(config))
    assert (done.code, done.out) == (0, "No changes required\n")
    config.write_text(CONFIG.replace("- {}\n", "- {servers: [c]}\n").replace("mode: native", "hostConfigPath: /b/b"))
    assert plan()[1] == [("one", name, "update"), ("one", "b", "recreate"), ("two", name, "none")]
    assert plan("two") == (0, [("two", name, "none")])
    config.write_text("apiLoadBalancerPools: {}\n")
    assert plan() == (1, [("one", name, "remove"), ("one", "b", "remove"), ("two", name, "remove")])


def test_a_plan_for_a_person(lb: Run, config: Path) -> None:
    write_state(config, "api-loadbalancer-haproxy", "b")
    config.write_text(CONFIG.replace("10.0.0.2", "10.0.0.3"))
    done = lb("apilb", "plan", "one", "--offline", "-f", str(config))
    assert done.code == 1
    assert done.out.splitlines()[:4] == [
        "update one/api-loadbalancer-haproxy on direct",
        "  file:",
        "    -  server 1 10.0.0.2:7443 verify none check check-ssl",
        "    +  server 1 10.0.0.3:7443 verify none check check-ssl",
    ]


def test_export_offline(lb: Run, config: Path) -> None:
    state = write_state(config, "api-loadbalancer-haproxy", "b")
    text = state.read_text()
    assert lb("apilb", "export", "--offline", "-f", str(config)).out == text
    only = yaml.safe_load(lb("apilb", "export", "two", "--offline", "-f", str(config)).out)
    assert list(only["state"]["apiLoadBalancerPools"]) == ["two"]
    state.rename(elsewhere := config.parent / "kept.yaml")
    done = lb("apilb", "plan", "--offline", "-f", str(config), "-f", str(elsewhere))
    assert (done.code, done.out) == (0, "No changes required\n")


@pytest.mark.parametrize("verb", ["apply", "destroy"])
def test_without_a_terminal_nothing_is_done(verb: str, config: Path) -> None:
    config.write_text(f"""\
bindAddress: 127.0.0.1:7443
servers: [a]
apiLoadBalancers: [{{mode: native, hostConfigPath: {config.parent}/d/x.yaml}}]
""")
    if verb == "destroy":
        write_state(config, "api-loadbalancer-haproxy")
    command = [sys.executable, "-m", "lbagent", "apilb", verb, "-f", str(config)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        4, "error: there is no terminal to ask on; nothing was changed; give --yes to change the hosts\n",
    )  # fmt: skip
    assert not (config.parent / "d").exists()


def test_it_starts_without_what_hosts_need(config: Path) -> None:
    """Most runs connect to no host: the import of asyncssh would cost half a second."""
    code = "import sys; from lbagent.cli.main import run; run(sys.argv[1:]); print(sorted({'docker', 'asyncssh', 'msgspec'} & sys.modules.keys()))"
    command = [sys.executable, "-c", code, "apilb", "plan", "--offline", "-f", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['msgspec']"
