"""kube-proxy serves the same folders as lbagent's nftables, and clients see no difference but those that docs/renderers.md states."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kube_api.programs import Programs, find_kube_proxy
from tests.oracle import kube_proxy_side
from tests.oracle.served import serve_folders

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.slow]
FOLDERS = 12


@pytest.mark.timeout(900)  # 25 seconds on a machine without other work
def test_kube_proxy_serves_alike(programs: Programs, tmp_path: Path) -> None:
    binary = find_kube_proxy()
    if binary is None:
        pytest.skip("missing: kube-proxy, in KUBE_PROXY or on PATH")
    found: list[str] = []
    with kube_proxy_side.made(programs, binary, tmp_path / "kube") as both:
        served = serve_folders(
            both,
            FOLDERS,
            27,
            lambda folder, lines: found.extend((str(folder), *lines)),
            design=kube_proxy_side.NftablesAndKubeProxy(),
            as_served=kube_proxy_side.plain,
        )
    assert found == []
    assert served >= FOLDERS
