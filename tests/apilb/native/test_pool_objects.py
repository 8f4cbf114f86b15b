"""An instance in the State: its frontends, its backends, and the states from health checks."""

from __future__ import annotations

import pytest

from lbagent.apilb.instance import Instance, Mode
from lbagent.apilb.native.pool_objects import (
    Bind,
    ServedInstance,
    ServerName,
    addresses_of,
    messages_of,
    objects_of,
    served_instance,
)
from lbagent.model.address import L3n4Addr, L4Type, parse_ip
from lbagent.model.backend import BackendState
from lbagent.model.service import ServiceName
from lbagent.model.state import State
from lbagent.objects.records import ObjectSnapshot, Origin, Service, ServicePort, StateOverride
from lbagent.resolve import Options, resolve

HOST = (parse_ip("10.9.0.1"), parse_ip("192.0.2.7"), parse_ip("fd09::1"))
NAMES = {"api.example": (parse_ip("10.0.0.8"), parse_ip("fd00::8"))}


def pool(bind: str = "127.0.0.1:7443", *servers: str) -> ServedInstance:
    instance = Instance(
        pool="p", name="lb", mode=Mode.NATIVE, bind_address=bind, host_config_path="/x/lb.yaml",
        servers=servers or ("10.0.0.1:6443", "10.0.0.2"),
    )  # fmt: skip
    return served_instance(instance, Origin("/x/lb.yaml", source="apilb"))


def state_of(
    of: ServedInstance, *down: str, overrides: tuple[StateOverride, ...] = (), extra: Service | None = None
) -> State:
    servers = addresses_of(of, NAMES)
    service, slices = objects_of(of, servers, {L3n4Addr.parse(text): True for text in down})
    services = {service.key: service} | ({extra.key: extra} if extra else {})
    objects = ObjectSnapshot(
        services=services,
        slices={piece.key: piece for piece in slices},
        backend_states={each.name: each for each in overrides},
    )
    return resolve(objects, Options("n", external_ips=False, host_addresses=HOST)).state


def rows(state: State) -> dict[str, list[str]]:
    """Return the backends that take new connections, by frontend."""
    return {str(svc.frontend): [str(each.address) for each in svc.selectable] for svc in state.services}


def test_a_loopback_bind_is_a_frontend_that_no_packet_from_outside_means() -> None:
    (svc,) = state_of(pool()).services
    assert svc.name == ServiceName("apilb", "lb")
    assert str(svc.frontend) == "127.0.0.1:7443"
    assert svc.flags.words() == ["HostPort", "non-routable", "loopback"]
    assert [str(each.address) for each in svc.selectable] == ["10.0.0.1:6443", "10.0.0.2:7443"]  # the port of the bind


@pytest.mark.parametrize(
    ("bind", "frontends"),
    [
        ("[::1]:7443", ["[::1]:7443"]),
        ("192.0.2.7:6443", ["192.0.2.7:6443"]),
        ("0.0.0.0:6443", ["0.0.0.0:6443", "10.9.0.1:6443", "192.0.2.7:6443"]),
        (
            "[::]:6443",
            ["0.0.0.0:6443", "10.9.0.1:6443", "192.0.2.7:6443", "[::]:6443", "[fd09::1]:6443"],
        ),
    ],
)
def test_where_a_bind_is_served(bind: str, frontends: list[str]) -> None:
    state = state_of(pool(bind, "10.0.0.1:6443", "[fd00::1]:6443"))
    assert list(rows(state)) == frontends
    for svc in state.services:
        assert [each.address.family for each in svc.selectable] == [svc.frontend.family]
        is_everywhere = not any(svc.frontend.address)
        is_loopback = svc.frontend.ip == "::1"
        assert ("non-routable" in svc.flags.words()) == (is_everywhere or is_loopback)
        assert ("loopback" in svc.flags.words()) == is_loopback


def test_a_server_that_is_down_takes_no_new_connections_and_keeps_its_own() -> None:
    (svc,) = state_of(pool(), "10.0.0.1:6443").services
    assert [str(each.address) for each in svc.selectable] == ["10.0.0.2:7443"]
    assert [(str(each.address), each.state) for each in svc.unselectable] == [
        ("10.0.0.1:6443", BackendState.QUARANTINED)
    ]


def test_without_a_server_that_is_up_there_is_none() -> None:
    (svc,) = state_of(pool(), "10.0.0.1:6443", "10.0.0.2:7443").services
    assert svc.selectable == ()
    assert len(svc.unselectable) == 2


@pytest.mark.parametrize(
    ("said", "selectable"),
    [(BackendState.ACTIVE, True), (BackendState.MAINTENANCE, False), (BackendState.QUARANTINED, False)],
)
def test_the_operator_s_word_beats_a_health_check(said: BackendState, selectable: bool) -> None:
    address = L3n4Addr.parse("10.0.0.1:6443")
    override = StateOverride(address.with_protocol(), address, said, Origin(source="operator"))
    for down in ((), ("10.0.0.1:6443",)):
        (svc,) = state_of(pool(), *down, overrides=(override,)).services
        assert (address in [each.address for each in svc.selectable]) == selectable
        (backend,) = [each for each in svc.backends if each.address == address]
        assert backend.state is said


def test_a_health_check_is_about_its_own_service() -> None:
    """The API servers are also backends of default/kubernetes: a check of one service does not affect the other."""
    port = ServicePort("https", L4Type.TCP, 443)
    other = Service("default", "kubernetes", cluster_ips=(parse_ip("10.96.0.1"),), ports=(port,))
    servers = addresses_of(pool(), {})
    down = {L3n4Addr.parse("10.0.0.1:6443"): True}
    service, slices = objects_of(pool(), servers, down)
    _, (same,) = objects_of(
        pool("127.0.0.1:6443", "10.0.0.1:6443"), addresses_of(pool("127.0.0.1:6443", "10.0.0.1:6443"), {}), {}
    )
    from msgspec.structs import replace

    theirs = replace(same, namespace="default", name="kubernetes", service="kubernetes")
    objects = ObjectSnapshot(
        services={service.key: service, other.key: other},
        slices={piece.key: piece for piece in (*slices, theirs)},
    )
    found = rows(resolve(objects, Options("n")).state)
    assert found["10.96.0.1:443"] == ["10.0.0.1:6443"]
    assert found["127.0.0.1:7443"] == ["10.0.0.2:7443"]


def test_names_have_the_addresses_of_the_bind_s_families() -> None:
    for bind, expected in (
        ("127.0.0.1:7443", ["10.0.0.8:6443"]),
        ("[::1]:7443", ["[fd00::8]:6443"]),
        ("[::]:7443", ["10.0.0.8:6443", "[fd00::8]:6443"]),
    ):
        (found,) = addresses_of(pool(bind, "api.example:6443"), NAMES).values()
        assert [str(each) for each in found] == expected


def test_a_server_named_twice_is_one_backend() -> None:
    (svc,) = state_of(pool("127.0.0.1:7443", "10.0.0.8:6443", "10.0.0.8:6443", "api.example:6443")).services
    assert len(svc.selectable) == 1


def test_a_server_without_an_address_is_named() -> None:
    of = pool("127.0.0.1:7443", "10.0.0.1:6443", "fd00::1", "no.example", "api.example")
    texts = [str(message) for message in messages_of(of, addresses_of(of, NAMES), NAMES)]
    assert texts == [
        "/x/lb.yaml: apilb p/lb: servers: fd00::1 has no address of the IP family of 127.0.0.1:7443; it gets no connections",
        "/x/lb.yaml: apilb p/lb: servers: no.example has no address: the name is not resolved; it gets no connections",
    ]


def test_which_addresses_a_bind_holds() -> None:
    loopback, everywhere, both = Bind.parse("127.0.0.1:7443"), Bind.parse("0.0.0.0:7443"), Bind.parse("[::]:7443")
    for address, found in (
        ("127.0.0.1", (True, True, True)),
        ("127.0.0.2", (False, True, True)),
        ("10.9.0.1", (False, True, True)),
        ("::1", (False, False, True)),
    ):
        assert tuple(bind.holds(parse_ip(address), 7443) for bind in (loopback, everywhere, both)) == found
        assert not both.holds(parse_ip(address), 7444)


@pytest.mark.parametrize("text", ["127.0.0.1", "api.example:1", "127.0.0.1:0", "127.0.0.1:70000", "::1:7443"])
def test_what_is_no_bind(text: str) -> None:
    with pytest.raises(ValueError):
        Bind.parse(text)


def test_how_servers_are_named() -> None:
    assert [pool("127.0.0.1:7443", each).servers[0] for each in ("h", "h:1", "fd00::1", "[fd00::1]:1")] == [
        ServerName("h", "h", 7443),
        ServerName("h:1", "h", 1),
        ServerName("fd00::1", "fd00::1", 7443),
        ServerName("[fd00::1]:1", "fd00::1", 1),
    ]


def test_an_older_service_keeps_a_frontend_that_a_bind_wants() -> None:
    of = pool("0.0.0.0:30080")
    port = ServicePort("https", addresses_of(of, {})[of.servers[0]][0].protocol, 80, 30080)
    older = Service(
        "shop", "web", created=5.0, families=(addresses_of(of, {})[of.servers[0]][0].family,), ports=(port,)
    )
    found = state_of(of, extra=older).by_frontend
    assert str(found[L3n4Addr.parse("0.0.0.0:30080")].name) == "shop/web"
    assert str(found[L3n4Addr.parse("192.0.2.7:30080")].name) == "apilb/lb"
