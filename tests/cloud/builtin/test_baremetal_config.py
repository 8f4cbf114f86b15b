"""The values of an inventory, and how Nodes are found in it."""

from __future__ import annotations

import asyncio

import pytest

from lbagent.cloud.builtin.baremetal_config import RouteSettings, read_inventory
from lbagent.cloud.builtin.baremetal_provider import BaremetalProvider
from lbagent.cloud.provider import InstanceNotFound, Node, NotSupported
from lbagent.errors import ConfigError

GOOD = """
zone: rack-1
machines:
- {name: a, addresses: [192.0.2.1, "FD00:0::1"], id: 17, type: small}
- {name: b, addresses: [192.0.2.2], zone: rack-2, powered: false, labels: {example.com/row: x}}
routes: {}
""".replace("id: 17", 'id: "17"')


def test_a_good_one() -> None:
    found = read_inventory(GOOD)
    a, b = found.machines
    assert (a.id, a.internal, a.zone, a.powered) == ("17", ("192.0.2.1", "fd00::1"), "rack-1", True)
    assert (b.id, b.zone, b.powered, dict(b.labels)) == ("b", "rack-2", False, {"example.com/row": "x"})
    assert found.routes == RouteSettings(254, 76)
    assert read_inventory("machines: [{name: a, addresses: [192.0.2.1]}]").routes is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--config:1: machines: it is missing"),
        ("machines: []", "--config:1: machines: at least one machine is needed"),
        ("machines:\n- {name: a, addresses: []}", "--config:2: machines[0].addresses: at least one address is needed"),
        ("machines:\n- {name: a, addresses: [x]}", "--config:2: machines[0].addresses[0]: "),
        ("machines:\n- {name: A, addresses: [192.0.2.1]}", "--config:2: machines[0].name: 'A' is not a Node name"),
        ("machines:\n- {name: a, address: [192.0.2.1]}", "--config:2: machines[0].address: unknown key; did you mean 'addresses'?"),
        ("machines:\n- {name: a, addresses: [192.0.2.1]}\n- {name: a, addresses: [192.0.2.2]}", "machines[1].name: 'a' is given twice"),
        ("machines:\n- {name: a, addresses: [192.0.2.1]}\n- {name: b, id: a, addresses: [192.0.2.2]}", "machines[1].id: 'a' is given twice"),
        ("machines:\n- {name: a, addresses: [192.0.2.1]}\n- {name: b, addresses: [192.0.2.1]}", "192.0.2.1 belongs to a too"),
        ("machines:\n- {name: a, addresses: [192.0.2.1], zone: a b}", "machines[0].zone: 'a b' is not a label value"),
        ("machines:\n- {name: a, addresses: [192.0.2.1], labels: {a b: c}}", "is not a label"),
        ("machines:\n- {name: a, addresses: [192.0.2.1], id: a/b}", "machines[0].id: 'a/b' is not an id"),
        ("machines: [{name: a, addresses: [192.0.2.1]}]\nroutes: {protocol: 2}", "--config:2: routes.protocol: 2 is not in 5-255"),
    ],
)  # fmt: skip
def test_a_wrong_one(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_inventory(text)
    assert message in str(caught.value)


def test_which_machine_a_node_is() -> None:
    machines = BaremetalProvider(GOOD).instances_v2()

    def exists(node: Node) -> bool:
        return asyncio.run(machines.exists(node))

    assert exists(Node(name="a"))
    assert exists(Node(name="renamed", provider_id="baremetal://17"))
    assert not exists(Node(name="a", provider_id="baremetal://18"))
    assert not exists(Node(name="c"))
    with pytest.raises(NotSupported, match="other://17 of the Node a is another provider's"):
        exists(Node(name="a", provider_id="other://17"))
    with pytest.raises(InstanceNotFound):
        asyncio.run(machines.metadata(Node(name="c")))
    assert asyncio.run(machines.is_shut_down(Node(name="b")))
    assert not asyncio.run(machines.is_shut_down(Node(name="a")))


def test_other_routes_need_a_restart() -> None:
    provider = BaremetalProvider(GOOD)
    with pytest.raises(NotSupported):
        provider.reload(GOOD.replace("routes: {}", "routes: {protocol: 77}"))
    provider.reload(GOOD.replace("name: b", "name: c"))
    assert asyncio.run(provider.instances_v2().exists(Node(name="c")))
    assert provider.routes() is not None
    assert BaremetalProvider("machines: [{name: a, addresses: [192.0.2.1]}]").routes() is None
