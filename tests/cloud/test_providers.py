"""`lbagent cloud run`: what is refused before a request to the server, and providers from plug-ins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lbagent.cloud import providers
from lbagent.cloud.provider import CloudProvider
from lbagent.errors import ConfigError
from tests.cli.conftest import Run, lb, no_agent  # noqa: F401

KUBECONFIG = """current-context: c
contexts: [{name: c, context: {cluster: c}}]
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443"}}]
"""
MODULE = """from lbagent.cloud.provider import CloudProvider, ConfigError
class Mine(CloudProvider):
    name = "mine"
    def __init__(self, config):
        if config == "wrong":
            raise ConfigError("color: unknown key", file="--config", line=1)
        if config == "broken":
            raise KeyError("color")
def other(config):
    return 3
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A function that adds a package with entry points to Python's path."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "their_provider.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))

    def put(package: str, **entries: str) -> None:
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
        (info / "entry_points.txt").write_text(f"[lbagent.cloud_providers]\n{lines}")

    yield put
    sys.modules.pop("their_provider", None)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    return tmp_path / "provider.yaml"


def refused(lb: Run, config: Path, *arguments: str) -> str:  # noqa: F811
    done = lb("cloud", "run", "--kubeconfig", str(config.parent / "kubeconfig"), *arguments)
    assert done.code == 2, done.err
    return done.err.removeprefix("error: ").strip()


def test_an_unknown_provider(lb: Run, no_agent: None, config: Path, install: Install) -> None:  # noqa: F811
    install("theirs", mine="their_provider:Mine")
    text = refused(lb, config, "--provider", "poll")
    assert text == "--provider: unknown provider 'poll'; there are: none, pool, edge, baremetal, fake, mine"


def test_two_of_one_name(lb: Run, no_agent: None, config: Path, install: Install) -> None:  # noqa: F811
    install("theirs", mine="their_provider:Mine")
    install("others", mine="their_provider:other", pool="their_provider:Mine")
    text = refused(lb, config, "--provider", "mine")
    assert "'mine'" in text
    assert "their_provider:Mine of theirs" in text
    assert "their_provider:other of others" in text
    assert "lbagent itself, their_provider:Mine of others" in refused(lb, config, "--provider", "pool")


@pytest.mark.parametrize(
    ("provider", "text", "message"),
    [
        ("pool", "pools:\n- {name: a, addresses: [10.0.0.9-10.0.0.1]}\n", "2: pools[0].addresses[0]: "),
        ("pool", "pools: [", "1: not YAML"),
        ("fake", "fail: [{op: x, error: y}]", "1: fail[0].op: unknown value 'x'"),
        ("none", "x: y", "1: provider none has no configuration"),
        ("mine", "wrong", "1: color: unknown key"),
    ],
)
def test_a_wrong_configuration(
    lb: Run,  # noqa: F811
    no_agent: None,  # noqa: F811
    config: Path,
    install: Install,
    provider: str,
    text: str,
    message: str,
) -> None:
    install("theirs", mine="their_provider:Mine")
    config.write_text(text)
    assert refused(lb, config, "--provider", provider, "--config", str(config)).startswith(f"{config}:{message}")


def test_wrong_usage(lb: Run, no_agent: None, config: Path) -> None:  # noqa: F811
    assert "--config" in refused(lb, config, "--provider", "pool")
    assert "No such file" in refused(lb, config, "--provider", "fake", "--config", "/nonexistent")
    assert "--lease-duration: 1s is not in" in refused(lb, config, "--provider", "none", "--lease-duration", "1s")
    assert "--retry-base" in refused(lb, config, "--provider", "none", "--retry-base", "10s", "--retry-max", "5s")
    assert "--health-address" in refused(lb, config, "--provider", "none", "--health-address", "here")
    done = lb("cloud", "run", "--provider", "none")
    assert (done.code, "one of --kubeconfig FILE and --in-cluster" in done.err) == (2, True)


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_has_the_form_that_was_asked_for(config: Path, form: str) -> None:
    (config.parent / "kubeconfig").write_text(KUBECONFIG.replace("192.0.2.1:6443", "127.0.0.1:1"))
    words = ("cloud", "run", "--provider", "none", "--kubeconfig", str(config.parent / "kubeconfig"))
    argv = [sys.executable, "-m", "lbagent", *words, "--log-format", form]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.kill()
    assert "cloud controller starts" in line
    assert line.startswith("{") == (form == "json")


def test_plug_ins_are_listed_and_made(lb: Run, no_agent: None, install: Install) -> None:  # noqa: F811
    install("theirs", mine="their_provider:Mine", gone="their_provider:nothing", other="their_provider:other")
    assert "mine" in lb("cloud", "providers").out
    factory = providers.provider("mine").load()
    assert isinstance(providers.make_provider("mine", factory, None, ""), CloudProvider)
    with pytest.raises(ConfigError, match="could not init cloud provider 'mine': KeyError"):
        providers.make_provider("mine", factory, "broken", "f")
    with pytest.raises(ConfigError, match="returned a int, not a CloudProvider"):
        providers.make_provider("other", providers.provider("other").load(), None, "")
    with pytest.raises(ConfigError, match="their_provider:nothing of theirs cannot be loaded: AttributeError"):
        providers.provider("gone").load()


def test_controllers_and_ranges_are_checked(lb: Run, no_agent: None, config: Path) -> None:  # noqa: F811
    assert refused(lb, config, "--provider", "none", "--controllers", "*,-routes").startswith(
        "--controllers: unknown controller '-routes'; there are: service-lb-controller, cloud-node-controller, "
    )
    text = refused(lb, config, "--provider", "none", "--cluster-cidr", "10.244.0.0/16,x")
    assert text == "--cluster-cidr: 'x' does not appear to be an IPv4 or IPv6 network"
    text = refused(lb, config, "--provider", "none", "--node-monitor-period", "0s")
    assert text == "--node-monitor-period: 0s is less than 0.1s"


def test_an_inventory_is_checked(lb: Run, no_agent: None, config: Path) -> None:  # noqa: F811
    config.write_text("machines:\n- {name: a, addresses: [192.0.2]}\n")
    text = refused(lb, config, "--provider", "baremetal", "--config", str(config))
    assert text.startswith(f"{config}:2: machines[0].addresses[0]: ")
