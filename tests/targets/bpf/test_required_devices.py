"""Which devices the agent insists on at start and at a reload, in a network of eth0, cni0, eth0.7 and eth1 (net/builders.py)."""

from __future__ import annotations

import pytest

from lbagent.config import Config
from lbagent.errors import NotFound
from lbagent.targets.bpf.device_keeper import require_devices, wanted_devices
from tests.net.builders import network


@pytest.mark.parametrize(
    "device", [(), ("eth0", "eth9"), ("eth9", "eth1"), ("bond*",), ("auto",), ("eth9", "bond+"), ("eth+",)]
)
def test_what_may_be_missing(device: tuple[str, ...]) -> None:
    """All but the last device; a pattern, which may match later."""
    require_devices(network(), Config(device=device))


def test_no_device_at_all() -> None:
    with pytest.raises(
        NotFound, match=r"eth8, eth9 does not exist.*nothing was attached; there are: cni0, eth0, eth0.7"
    ) as caught:
        require_devices(network(), Config(device=("eth8", "eth9")))
    assert caught.value.exit_code == 3
    require_devices(
        network(), Config(device=("eth8", "eth9")), known=("eth9",)
    )  # a reload while it is gone for a moment


def test_pod_devices_are_no_devices_unless_they_are_named() -> None:
    found = wanted_devices(network(), ("eth0",), ("eth*", "cni0"))
    assert {link.name: is_pod for link, is_pod in found.values()} == {
        "eth0": False, "cni0": True, "eth0.7": True, "eth1": True,
    }  # fmt: skip
