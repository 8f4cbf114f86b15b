"""Which servers are up for HAProxy, by its log."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lbagent.apilb.hosts import server_health
from lbagent.apilb.hosts.haproxy_log import first_alert, last_worker, parse_health
from lbagent.apilb.plan_records import Action
from tests.apilb.hosts.host_lab import HostLab
from tests.lab.netns import LabError

BEGUN = 1767225600.0
SAID = """\
2026-01-01T00:00:00Z [NOTICE]   (1) : New worker (7) forked
2026-01-01T00:00:01Z [WARNING]  (7) : Server kube-apiserver/0 is DOWN, reason: Layer7 wrong status, code: 500, info: "Internal, Server Error", check duration: 1ms. 2 active and 0 backup servers left.
2026-01-01T00:00:02Z [WARNING]  (17) : Server kube-apiserver/1 is DOWN, reason: Layer4 connection problem, info: "Connection refused", check duration: 0ms. 1 active and 0 backup servers left.
2026-01-01T00:00:03Z [NOTICE]   (1) : New worker (17) forked
2026-01-01T00:00:04Z [WARNING]  (7) : Server kube-apiserver/2 is DOWN, reason: Layer4 timeout, check duration: 2000ms. 1 active and 0 backup servers left.
2026-01-01T00:00:05Z [WARNING]  (17) : Server kube-apiserver/9 is DOWN, reason: Layer4 timeout, check duration: 2000ms.
"""


def test_the_last_workers_lines_count() -> None:
    rows = parse_health(SAID, ["a:1", "b:1", "c:1"])
    assert [row["up"] for row in rows] == [True, False, True]
    assert last_worker(SAID) == "17"
    assert last_worker("") == ""
    assert rows[1] == {
        "address": "b:1",
        "up": False,
        "since": BEGUN + 2,
        "last": 'Layer4 connection problem, info: "Connection refused"',
    }
    assert rows[0]["since"] == BEGUN + 3
    back = (
        SAID
        + "2026-01-01T00:00:06.000000000Z [WARNING]  (17) : Server kube-apiserver/1 is UP, reason: Layer7 check passed, code: 200, check duration: 5ms. 2 active\n"
    )
    row = parse_health(back, ["a:1", "b:1", "c:1"])[1]
    assert (row["up"], row["since"], row["last"]) == (True, BEGUN + 6, "Layer7 check passed, code: 200")


def test_without_the_begin_nothing_is_known() -> None:
    assert parse_health(SAID.split("\n", 1)[1].replace("New worker", "Old worker"), ["a:1"]) == []


def test_the_first_alert_is_the_reason() -> None:
    said = "[NOTICE] (1) : x\n2026Z [ALERT]    (1) : cannot bind\n[ALERT] (1) : Fatal errors\n"
    assert first_alert(said) == "cannot bind"
    assert first_alert("one\ntwo\n\n") == "two"
    assert first_alert("") == "it printed nothing"


@pytest.mark.root
async def test_a_real_haproxy_is_understood(lab: HostLab) -> None:
    wanted = lab.instance(servers=("127.0.0.1:10001", "127.0.0.1:10002"))
    with lab.servers(10001):
        await lab.do(Action.CREATE, wanted)
        for _ in range(100):
            rows = (await server_health([wanted]))[wanted.key]
            if [row["up"] for row in rows] == [True, False]:
                break
        else:
            raise LabError(str(rows))
    assert 'info: "Connection refused"' in rows[1]["last"]
    assert [row["address"] for row in rows] == list(wanted.servers)
    assert await server_health([replace(wanted, servers=("127.0.0.1:10003",)), replace(wanted, name="none")]) == {}
