"""The words of `--renderer`: NAME or NAME=SETTINGS. targets/renderers.py has the names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

DEFAULT = ("bpf",)


class RendererWord(NamedTuple):
    """A data plane and its settings."""

    name: str
    settings: str = ""


def renderer_words(texts: Iterable[str]) -> list[RendererWord]:
    """Return the data planes of these words; without any, the default."""
    out = []
    for text in tuple(texts) or DEFAULT:
        name, _, settings = text.partition("=")
        out.append(RendererWord(name, settings))
    return out
