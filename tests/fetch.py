"""Fetches all downloads of the tests, before the first one starts: `python -m tests.fetch`.

Cached parts are not fetched again. A part that this machine cannot have (no Go, no apt-get) is reported and left out: the tests
that need it are skipped, or fail and name it. A part that cannot be fetched now, after several attempts, ends the command with 1.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from functools import partial

from tests.kube_api.programs import BuildFailed, Missing, build_programs
from tests.lab.debian_packages import SETS, unpacked
from tests.lab.image_downloads import image_downloads
from tests.lab.netns import LabError
from tests.packaging.renderer import build_renderer

GO_PAUSES_S = 5, 30  # between the attempts of a build whose modules cannot be downloaded
NETWORK_WORDS = (
    "dial tcp",
    "lookup ",
    "i/o timeout",
    "TLS handshake",
    "connection re",
    "unexpected EOF",
    "502 ",
    "503 ",
)
Say = Callable[[str], object]


def debian(name: str, say: Say) -> None:
    """Fetch a set of Debian packages. Raises Missing, LabError."""
    if shutil.which("apt-get") is None:
        raise Missing(f"no apt-get, for the packages {' '.join(SETS[name])}")
    unpacked(name, SETS[name], say)


def image(say: Say) -> None:
    """Fetch the parts of the container image. Raises Missing, LabError."""
    if shutil.which("apt-get") is None:
        raise Missing("no apt-get, for Debian's Python in the container image")
    image_downloads(say)


def with_go(build: Callable[[Say], object], say: Say, pause: Callable[[float], None] = time.sleep) -> None:
    """Build a program from Go modules; retry after a failure of the network. Raises Missing, BuildFailed."""
    for pause_s in GO_PAUSES_S:
        try:
            build(say)
        except BuildFailed as error:
            if not any(word in str(error) for word in NETWORK_WORDS):
                raise
            say(f"Go modules could not be downloaded; the next try begins in {pause_s} s")
            pause(pause_s)
        else:
            return
    build(say)


PARTS: dict[str, Callable[[Say], None]] = {
    **{f"Debian packages: {name}": partial(debian, name) for name in SETS},
    "container image: Debian packages and wheels": image,
    "kube-apiserver, kube-controller-manager, kube-proxy": partial(with_go, build_programs),
    "renderer of kustomizations and Helm charts": partial(with_go, build_renderer),
}


def fetch(parts: dict[str, Callable[[Say], None]], say: Say) -> int:
    """Fetch parts; return how many could not be fetched."""
    failed = 0
    for name, part in parts.items():
        try:
            part(say)
        except Missing as error:
            say(f"fetch: {name}: left out, its tests are skipped: {error}")
        except (LabError, BuildFailed, OSError) as error:
            failed += 1
            say(f"fetch: {name}: failed: {error}")
    if failed:
        say(
            f"fetch: {failed} of {len(parts)} parts are missing; is there a network? What was fetched is kept; try again"
        )
    return failed


if __name__ == "__main__":
    sys.exit(1 if fetch(PARTS, lambda text: print(text, file=sys.stderr, flush=True)) else 0)
