"""`--device`: names, patterns, the devices of the default routes, and the messages about missing ones."""

from __future__ import annotations

import pytest

from lbagent.config.device_names import ChosenDevices, DevicesPresent, choose_devices, is_name, matches

PRESENT = DevicesPresent({"lo", "eth0", "eth1", "eth10", "bond0", "wlan0", "veth7"}, {"lo"}, {"bond0", "wlan0"})


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["eth1", "eth0"], ["eth1", "eth0"]),
        (["eth+"], ["eth0", "eth1", "eth10"]),
        (["eth?"], ["eth0", "eth1"]),
        (["bond*", "eth1"], ["bond0", "eth1"]),
        (["auto"], ["bond0", "wlan0"]),
        (["eth1", "auto", "eth+"], ["eth1", "bond0", "wlan0", "eth0", "eth10"]),
        (["*"], ["bond0", "eth0", "eth1", "eth10", "wlan0"]),
        (["lo", "veth7"], ["lo", "veth7"]),
        ([], []),
    ],
)
def test_what_is_chosen(words: list[str], names: list[str]) -> None:
    """Each device once; a pattern leaves loopback and pod devices out, a name does not."""
    assert choose_devices(words, PRESENT, ["veth*"]) == ChosenDevices(tuple(names), {})


def test_what_is_not_there_is_named() -> None:
    chosen = choose_devices(["eth0", "eth9", "team+", "auto"], PRESENT._replace(default_routes=()), ())
    assert chosen.names == ("eth0",)
    assert chosen.faults == {"eth9"}
    assert choose_devices(["team+", "auto"], DevicesPresent({"lo"}, {"lo"}), ()).faults == {"team+", "auto"}
    assert chosen.missing == {
        "eth9": "device eth9 is not there; programs are attached when it comes",
        "team+": "no device matches team+; programs are attached when one comes",
        "auto": "no device has a default route; programs are attached when one has",
    }


def test_names_and_patterns() -> None:
    assert [word for word in ("eth0", "eth0.100", "eth+", "e*", "e?", "e[01]", "auto") if is_name(word)] == [
        "eth0",
        "eth0.100",
    ]
    assert matches("eth0", "eth+")
    assert not matches("neth0", "eth+")
    assert matches("Eth0", "[Ee]th0")
