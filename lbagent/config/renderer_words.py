"""What the words of `--renderer` say: NAME or NAME=SETTINGS. Which names there are, targets/renderers.py knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

DEFAULT = ("bpf",)


class RendererWord(NamedTuple):
    """A data plane, and what is said of it."""

    name: str
    settings: str = ""


def renderer_words(texts: Iterable[str]) -> list[RendererWord]:
    """Return what these words say; without any, that of the default."""
    out = []
    for text in tuple(texts) or DEFAULT:
        name, _, settings = text.partition("=")
        out.append(RendererWord(name, settings))
    return out
