"""Which connections end."""

from __future__ import annotations

from lbagent.model.address import L3n4Addr
from lbagent.net.conntrack import Ended
from lbagent.targets.nftables.backends_gone import BackendUse
from tests.targets.nftables.made import backend, row, rule_set

ONE, TWO = "10.0.0.1:8080", "10.0.0.2:8080"


def address(text: str) -> L3n4Addr:
    return L3n4Addr.parse(text)


def test_a_backend_that_no_service_has() -> None:
    use = BackendUse()
    old = [row("10.96.0.1:80", ONE, TWO)]
    use.change([], old)
    assert use.take() == set()
    use.change(old, [row("10.96.0.1:80", ONE)])
    assert use.take() == {Ended(address(TWO))}
    assert use.take() == set()


def test_tcp_stays_while_another_service_has_the_backend_and_udp_does_not() -> None:
    for protocol, ended in (("TCP", set()), ("UDP", {Ended(address(f"{ONE}/UDP"), address("10.96.0.1:80/UDP"))})):
        use = BackendUse()
        old, other = (
            [row(f"10.96.0.1:80/{protocol}", f"{ONE}/{protocol}")],
            [row(f"10.96.0.2:80/{protocol}", f"{ONE}/{protocol}")],
        )
        use.change([], old)
        use.change([], other)
        use.change(old, [row(f"10.96.0.1:80/{protocol}")])
        assert use.take() == ended


def test_a_frontend_that_goes_ends_its_connections() -> None:
    use = BackendUse()
    old, other = [row("10.96.0.1:80", ONE)], [row("10.96.0.2:80", ONE)]
    use.change([], old)
    use.change([], other)
    use.change(old, [])
    assert use.take() == {Ended(address(ONE), address("10.96.0.1:80"))}


def test_a_backend_that_moves_from_one_service_to_another_stays() -> None:
    use = BackendUse()
    old = [row("10.96.0.1:80", ONE, TWO)]
    use.change([], old)
    use.change(old, [row("10.96.0.1:80", ONE)])
    use.change([], [row("10.96.0.2:80", TWO)])
    assert use.take() == set()


def test_a_withdrawn_backend_is_one_still() -> None:
    use = BackendUse()
    old = [row("10.96.0.1:80", ONE, TWO)]
    use.change([], old)
    use.change(old, [row("10.96.0.1:80", ONE, unselectable=(backend(TWO),))])
    assert use.take() == set()


def test_what_an_earlier_agent_left() -> None:
    use = BackendUse()
    use.change(
        [], [row("10.96.0.1:80", ONE), row("10.96.0.1:53/UDP", f"{ONE}/UDP"), row("10.96.0.2:53/UDP", f"{TWO}/UDP")]
    )
    left = rule_set(row("10.96.0.1:80", ONE, TWO), row("10.96.0.1:53/UDP", f"{ONE}/UDP", f"{TWO}/UDP"))
    use.add_left(left.elements())
    assert use.take() == {Ended(address(TWO)), Ended(address(f"{TWO}/UDP"), address("10.96.0.1:53/UDP"))}
