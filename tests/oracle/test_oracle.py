"""BPF and nftables serve the same folders, and clients see no difference but those that docs/renderers.md states."""

from __future__ import annotations

import pytest

from tests.oracle import twins
from tests.oracle.served import serve_folders

FOLDERS = 152  # with each hook


@pytest.mark.timeout(900)  # 25 seconds on a machine without other work
@pytest.mark.parametrize("attach", ["tc", "xdp"])
def test_both_data_planes_serve_alike(attach: str) -> None:
    found: list[str] = []
    with twins.made(attach) as both:
        served = serve_folders(both, FOLDERS, 27, lambda folder, lines: found.extend((str(folder), *lines)))
    assert found == []
    assert served >= FOLDERS
