"""Resolves the words of `--device` to devices: names, patterns, `auto`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

AUTO = "auto"  # the devices of the default routes
_WILD = "*?["


class DevicesPresent(NamedTuple):
    """The names of the existing devices: all, loopback ones, and those of the default routes."""

    names: Collection[str]
    loopback: Collection[str] = ()
    default_routes: Collection[str] = ()


class ChosenDevices(NamedTuple):
    """The devices of `--device` now, each once; and a message for each word without a device."""

    names: tuple[str, ...]
    missing: dict[str, str]

    @property
    def faults(self) -> frozenset[str]:
        """The words whose device must exist: a pattern or `auto` may match none beside another device."""
        return frozenset(word for word in self.missing if is_name(word) or not self.names)


def is_name(word: str) -> bool:
    """Return whether a word is the name of one device, existing or not."""
    return word != AUTO and not word.endswith("+") and not any(sign in word for sign in _WILD)


def matches(name: str, pattern: str) -> bool:
    """Return whether a device's name fits a pattern: a shell's, or iptables' `eth+`, which is `eth*`."""
    return fnmatchcase(name, pattern.removesuffix("+") + "*" if pattern.endswith("+") else pattern)


def choose_devices(words: Sequence[str], present: DevicesPresent, pod_patterns: Sequence[str]) -> ChosenDevices:
    """Return the devices of `--device`, in the order of the words, then by name.

    A pattern and `auto` leave out loopback devices and those of a `--pod-device` pattern; a name takes precedence over both.
    """
    found: dict[str, None] = {}
    missing: dict[str, str] = {}
    usual = sorted(set(present.names) - set(present.loopback))
    usual = [name for name in usual if not any(fnmatchcase(name, pattern) for pattern in pod_patterns)]
    for word in words:
        if is_name(word):
            names = [word] if word in present.names else []
        elif word == AUTO:
            names = [name for name in usual if name in present.default_routes]
        else:
            names = [name for name in usual if matches(name, word)]
        found.update(dict.fromkeys(names))
        if not names:
            missing[word] = _sentence(word)
    return ChosenDevices(tuple(found), missing)


def _sentence(word: str) -> str:
    if word == AUTO:
        return "no device has a default route; programs are attached when one has"
    if is_name(word):
        return f"device {word} is not there; programs are attached when it comes"
    return f"no device matches {word}; programs are attached when one comes"
