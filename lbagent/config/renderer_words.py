"""The words of `--renderer`: NAME or NAME=SETTINGS. Which names there are: render/renderer_names.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lbagent.errors import ConfigError
from lbagent.model.family import Family

DEFAULT = ("bpf",)
AUTO = "auto"  # bpf where it can be used, else nftables
_FAMILIES = {"ipv4": Family.IPV4, "ipv6": Family.IPV6}
_PATH_OF = {"record": "file"}  # renderers whose settings are one path, and its key


class RendererWord(NamedTuple):
    """A data plane, and its settings as one text."""

    name: str
    settings: str = ""


class RendererSettings(NamedTuple):
    """The settings by key, without `family`: the family that a renderer serves, None for both."""

    settings: dict[str, str]
    family: Family | None = None


def renderer_words(texts: Iterable[str]) -> list[RendererWord]:
    """Return the data planes of these words; without any, the default."""
    out = []
    for text in tuple(texts) or DEFAULT:
        name, _, settings = text.partition("=")
        out.append(RendererWord(name, settings))
    return out


def renderer_settings(word: RendererWord) -> RendererSettings:
    """Read `KEY=VALUE,...`. Raises ConfigError."""
    name, text = word
    if name in _PATH_OF:
        if not text:
            raise ConfigError(f"--renderer {name}: name the file of the calls, as in {name}=FILE")
        return RendererSettings({_PATH_OF[name]: text})
    settings: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not (key and equals and value) or key in settings:
            raise ConfigError(f"--renderer {name}={text}: expected KEY=VALUE,... with each key once, got {part!r}")
        settings[key] = value
    family = settings.pop("family", "")
    if family and family not in _FAMILIES:
        raise ConfigError(f"--renderer {name}: family is {family!r}; it can be ipv4 or ipv6")
    return RendererSettings(settings, _FAMILIES.get(family))
