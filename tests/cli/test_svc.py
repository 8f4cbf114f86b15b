"""`svc list`, `svc get`: tables, JSON, sorting, watching."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
import yaml
from msgspec.structs import replace

from lbagent.api.agent_status import FailingService
from lbagent.cli.output import natural, table
from lbagent.model.address import L3n4Addr
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import CIDR, RESTORED, SVC, ServiceName, SVCType
from tests.api.serving import Agent
from tests.cli.conftest import Run

TABLE = """\
ID   FRONTEND              TYPE           BACKENDS   STATE    NAME
1    10.96.0.10:80/TCP     ClusterIP      2/3        active   shop/web
10   192.0.2.10:80/TCP     LoadBalancer   1/1        active   shop/web
11   192.0.2.10:80/TCP/i   LoadBalancer   0/0        empty    shop/web
2    [fd00::a]:53/UDP      ClusterIP      0/1        empty    kube-system/dns
"""


def test_table(lb: Run, agent: Agent) -> None:
    """Upper-case headers, three spaces, no borders, the agent's order."""
    done = lb("svc", "list")
    assert (done.code, done.err) == (0, "")
    assert done.out == TABLE


def test_no_headers(lb: Run, agent: Agent) -> None:
    lines = lb("svc", "list", "--no-headers").out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("1 ")


def test_wide_has_more_columns(lb: Run, agent: Agent) -> None:
    lines = lb("svc", "list", "-o", "wide").out.splitlines()
    assert lines[0].split()[-6:] == ["PORT", "ALGORITHM", "AFFINITY", "EXTERNAL", "INTERNAL", "FLAGS"]
    assert lines[2].split()[-5:] == [
        "maglev",
        "60s",
        "Local",
        "Cluster",
        "LoadBalancer+Local+two-scopes+sessionAffinity",
    ]


def test_json_and_yaml_say_the_same(lb: Run, agent: Agent) -> None:
    """The JSON contract, unabridged; YAML is the same document."""
    rows = json.loads(lb("svc", "list", "-o", "json").out)
    assert [row["id"] for row in rows] == [1, 10, 11, 2]
    assert rows[0]["backends"][0]["address"] == "10.0.0.9:8080/TCP"
    assert yaml.safe_load(lb("svc", "list", "-o", "yaml").out) == rows


def test_names(lb: Run, agent: Agent) -> None:
    """Each service once."""
    assert lb("svc", "list", "-o", "name").out == "shop/web\nkube-system/dns\n"


def test_namespace(lb: Run, agent: Agent) -> None:
    assert lb("svc", "list", "-n", "kube-system", "-o", "name").out == "kube-system/dns\n"


def test_a_namespace_that_has_nothing_says_so(lb: Run, agent: Agent) -> None:
    """Exit code 0: it is not an error; JSON is an empty list."""
    done = lb("svc", "list", "-n", "nowhere")
    assert (done.code, done.err) == (0, "no service with namespace nowhere is served here\n")
    done = lb("svc", "list", "-n", "nowhere", "-o", "json")
    assert (done.code, done.out, done.err) == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("vip", "ids"),
    [
        ("10.96.0.10", [1]),
        ("192.0.2.10:80", [10, 11]),
        ("192.0.2.10:80/TCP", [10, 11]),
        ("fd00::a", [2]),
        ("[fd00::a]", [2]),
        ("[fd00::a]:53", [2]),
    ],
)
def test_get_by_vip(lb: Run, agent: Agent, vip: str, ids: list[int]) -> None:
    assert [row["id"] for row in json.loads(lb("svc", "get", vip, "-o", "json").out)] == ids


@pytest.mark.parametrize(("vip", "code"), [("10.96.0.11", 3), ("192.0.2.10:80/UDP", 3), ("10.96.0.999", 2), ("a:b", 2)])
def test_get_by_a_vip_that_is_none(lb: Run, agent: Agent, vip: str, code: int) -> None:
    done = lb("svc", "get", vip)
    assert done.code == code
    assert vip in done.err


@pytest.mark.parametrize(
    ("name", "ids"),
    [("shop/web:80", [1, 10, 11]), ("shop/web:80/TCP", [1, 10, 11]), ("kube-system/dns:53/udp", [2])],
)
def test_get_one_port_of_a_service(lb: Run, agent: Agent, name: str, ids: list[int]) -> None:
    assert [row["id"] for row in json.loads(lb("svc", "get", name, "-o", "json").out)] == ids


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shop/web:81", "service shop/web has no port 81 here; its ports are 80/TCP"),
        ("shop/web:80/UDP", "service shop/web has no port 80/UDP here; its ports are 80/TCP"),
        ("shop/gone:80", "no service shop/gone is served here"),
    ],
)
def test_get_a_port_that_a_service_lacks(lb: Run, agent: Agent, name: str, text: str) -> None:
    done = lb("svc", "get", name)
    assert (done.code, done.out) == (3, "")
    assert text in done.err


def test_get_shows_source_ranges(lb: Run, agent: Agent) -> None:
    ranges = (CIDR.parse("10.0.0.0/8"), CIDR.parse("192.0.2.0/24"))
    svc = replace(agent.current.services[2], check_source_range=True, source_ranges=ranges)
    none = replace(agent.current.services[3], check_source_range=True, source_ranges_deny=True)
    agent.advance((svc, none))
    out = lb("svc", "get", "shop/web").out
    assert "  source ranges: allow 10.0.0.0/8, 192.0.2.0/24\n" in out
    assert "  source ranges: deny none of this IP family\n" in out
    row, _ = json.loads(lb("svc", "list", "-o", "json").out)
    assert (row["source_ranges_policy"], row["source_ranges"]) == ("allow", ["10.0.0.0/8", "192.0.2.0/24"])


def test_frontends_that_no_object_names_are_marked(lb: Run, agent: Agent) -> None:
    """The mark is a separate field; the name in the list is text."""
    svc, other = agent.current.services[2], agent.current.services[3]
    agent.advance((replace(svc, name=RESTORED), other))
    done = lb("svc", "list")
    assert "?/restored" in done.out
    assert "1 frontends are served as an earlier agent left them" in done.err
    rows = json.loads(lb("svc", "list", "-o", "json").out)
    assert [row.get("restored", False) for row in rows] == [True, False]


def test_what_sources_outside_reach_is_not_called_non_routable(lb: Run, agent: Agent) -> None:
    """`map dump` has the flag of the maps all the same."""
    port = L3n4Addr.parse("0.0.0.0:30080")
    surrogate = SVC(
        port, 5, ServiceName("shop", "web"), type=SVCType.NODE_PORT, flags=ServiceFlags.parse("NodePort, non-routable")
    )
    agent.advance((*agent.current.services, surrogate))
    agent.clusterips_are_reached = True
    flags = {row["frontend"]: row["flags"] for row in json.loads(lb("svc", "list", "-o", "json").out)}
    assert flags["10.96.0.10:80/TCP"] == ["ClusterIP"]
    assert flags["0.0.0.0:30080/TCP"] == ["NodePort", "non-routable"]
    agent.clusterips_are_reached = False
    assert json.loads(lb("svc", "list", "-o", "json").out)[0]["flags"] == ["ClusterIP", "non-routable"]


def test_a_list_fits_80_columns(lb: Run, agent: Agent) -> None:
    """Names of a usual cluster and an IPv6 VIP; nothing is cut, and the order of the columns is the same."""
    svc = agent.current.services[1]
    wide = replace(svc, id=12, frontend=L3n4Addr.parse("[fd00:96::10]:8443"), type=SVCType.LOAD_BALANCER)
    agent.advance((replace(wide, name=ServiceName("kube-system", "kube-dns")),))
    lines = lb("svc", "list").out.splitlines()
    assert max(map(len, lines)) <= 80
    row = ["12", "[fd00:96::10]:8443/TCP", "LoadBalancer", "2/3", "active", "kube-system/kube-dns"]
    assert lines[1].split() == row
    assert max(map(len, lb("svc", "list", "-o", "wide").out.splitlines())) > 80


def test_a_table_cuts_long_names_to_its_width(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a pipe: 80 columns, or $COLUMNS. All other formats have the full name."""
    name = ServiceName("shop", "w" * 63)
    agent.advance((replace(agent.current.services[1], name=name), agent.current.services[-1]))
    for width in (80, 70):
        lines = lb("svc", "list").out.splitlines()
        assert max(map(len, lines)) == width
        assert lines[1].endswith("w…")
        assert lines[2].split()[-1] == "kube-system/dns"  # a short one stays whole
        monkeypatch.setenv("COLUMNS", "70")
    for form in ("wide", "json", "yaml", "name"):
        assert "w" * 63 in lb("svc", "list", "-o", form).out
    assert max(map(len, lb("backend", "list").out.splitlines())) <= 70


def test_addresses_are_never_cut(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the headers alone are too wide, the table is too; a name keeps at least twelve characters."""
    monkeypatch.setenv("COLUMNS", "40")
    vip = "[2001:db8:1111:2222:3333:4444:5555:6666]:65535"
    agent.advance((replace(agent.current.services[1], frontend=L3n4Addr.parse(vip)),))
    assert lb("svc", "list").out.splitlines()[1].split() == [
        "1",
        f"{vip}/TCP",
        "ClusterIP",
        "2/3",
        "active",
        "shop/web",
    ]


@pytest.mark.parametrize("words", ["svc list", "backend list", "backend set-state", "backend clear-state"])
def test_help_says_that_tables_are_cut(lb: Run, words: str) -> None:
    text = " ".join(lb(*words.split(), "--help").out.split())
    assert "A table cuts long names to fit the terminal, else 80 columns ($COLUMNS sets another number)" in text


@pytest.mark.parametrize(
    ("column", "ids"),
    [("id", [1, 2, 10, 11]), ("FRONTEND", [1, 10, 11, 2]), ("name", [2, 1, 10, 11]), ("type", [1, 2, 10, 11])],
)
def test_sort(lb: Run, agent: Agent, column: str, ids: list[int]) -> None:
    """By header or field, numbers by value, stable."""
    assert [row["id"] for row in json.loads(lb("svc", "list", "-o", "json", "--sort-by", column).out)] == ids


def test_sort_by_nonsense(lb: Run, agent: Agent) -> None:
    done = lb("svc", "list", "--sort-by", "colour")
    assert done.code == 2
    assert "frontend" in done.err


def test_nothing_to_list(lb: Run, agent: Agent) -> None:
    """Headers alone, an empty list, nothing."""
    agent.advance(())
    assert lb("svc", "list").out.split() == ["ID", "FRONTEND", "TYPE", "BACKENDS", "STATE", "NAME"]
    assert json.loads(lb("svc", "list", "-o", "json").out) == []
    assert lb("svc", "list", "-o", "name").out == ""
    assert lb("svc", "list", "--no-headers").out == ""


def test_get(lb: Run, agent: Agent) -> None:
    """Every frontend of the service with its backends in slot order."""
    done = lb("svc", "get", "shop/web")
    assert done.code == 0
    blocks = done.out.split("\n\n")
    assert len(blocks) == 3
    assert blocks[0].splitlines()[0].split() == ["10.96.0.10:80/TCP", "shop/web:http"]
    assert [line.split()[1] for line in blocks[0].splitlines()[4:]] == [
        "10.0.0.9:8080/TCP",
        "10.0.0.10:8080/TCP",
        "10.0.0.11:8080/TCP",
    ]
    assert "affinity 60 s" in blocks[1]
    assert "no backends" in blocks[2]


def test_get_json_is_a_list_like_the_list(lb: Run, agent: Agent) -> None:
    rows = json.loads(lb("svc", "get", "kube-system/dns", "-o", "json").out)
    assert rows == [row for row in json.loads(lb("svc", "list", "-o", "json").out) if row["name"] == "dns"]


def test_get_nobody(lb: Run, agent: Agent) -> None:
    """Exit code 3; a name alone is in default."""
    for name, full in (("shop/nobody", "shop/nobody"), ("web", "default/web")):
        done = lb("svc", "get", name)
        assert done.code == 3
        assert full in done.err


def test_watch_prints_changes(agent: Agent) -> None:
    """First all rows, then the changed one, then the removed one; Ctrl-C ends it."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "lbagent", "svc", "list", "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(5)]
        assert first[0].startswith("ID ")
        services = list(agent.current.services)
        services[1] = replace(services[1], unselectable=())
        agent.advance(tuple(services))
        assert process.stdout.readline().split()[1:4] == ["10.96.0.10:80/TCP", "ClusterIP", "2/2"]
        agent.advance(tuple(services[:-1]))
        assert process.stdout.readline().split() == ["removed", "kube-system/dns", "[fd00::a]:53/UDP"]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == ""  # click ends the ^C of a terminal with a new line
    finally:
        process.kill()
        process.communicate()


def test_watch_ends_when_its_reader_has_left(agent: Agent) -> None:
    """`lbagent svc list -w | head -1`, although nothing changes."""
    argv = [sys.executable, "-m", "lbagent", "svc", "list", "-w"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("ID")
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


def test_natural_order() -> None:
    assert sorted(["10.0.0.10:80", "10.0.0.9:80", "10.0.0.9:443"], key=natural) == [
        "10.0.0.9:80",
        "10.0.0.9:443",
        "10.0.0.10:80",
    ]
    assert sorted([10, 9, 100], key=natural) == [9, 10, 100]


def test_a_name_stays_in_its_line(lb: Run, agent: Agent) -> None:
    """No API server checks the manifests of a folder."""
    svc = agent.current.services[1]
    agent.advance((replace(svc, name=replace(svc.name, name="a\nb\x1b[31m ü")),))
    assert lb("svc", "list").out.splitlines()[1].endswith("shop/a\\nb\\x1b[31m ü")
    assert lb("svc", "list", "-o", "name").out == "shop/a\\nb\\x1b[31m ü\n"
    assert json.loads(lb("svc", "list", "-o", "json").out)[0]["name"] == "a\nb\x1b[31m ü"


def test_table_of_nothing() -> None:
    assert table((), [], wide=False, headers=False) == []


def test_list_says_when_the_maps_hold_something_else(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, so that a program can read the table; JSON has no message."""
    full = FailingService("10.96.0.10:80/TCP", "shop/web", "map lb4_service is full", 1.0)
    status = agent.status
    monkeypatch.setattr(agent, "status", lambda: replace(status(), failing=[full]))
    assert lb("svc", "list").err == "1 frontends are not in the maps as listed; `lbagent status` shows why\n"
    assert lb("svc", "list", "-o", "json").err == ""
    agent.ready = False
    monkeypatch.setattr(agent, "status", status)
    assert "not ready" in lb("svc", "list").err
