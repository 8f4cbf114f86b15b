"""`python -m tests.oracle`: serve random folders by BPF and by nftables, and print each difference. Exit code 1: there is one."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.oracle import twins
from tests.oracle.folders import Folder
from tests.oracle.served import serve_folders

HOOKS = ("tc", "xdp")


def main() -> int:
    """Run on each hook in turn."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("-n", "--folders", type=int, default=300, help="of all hooks together")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="the same seed, the same folders")
    parser.add_argument("--attach", action="append", choices=HOOKS)
    parser.add_argument("--kube-proxy", action="store_true", help="nftables beside the real kube-proxy, not beside BPF")
    options = parser.parse_args()
    if options.kube_proxy:
        return _beside_kube_proxy(options.folders, options.seed)
    hooks, differing = options.attach or HOOKS, 0
    print(f"SEED={options.seed}", flush=True)
    for hook in hooks:
        count = 0

        def report(folder: Folder, found: list[str], hook: str = hook) -> None:
            nonlocal count
            count += 1
            print("\n".join((f"{hook}: {folder}", *(f"    {line}" for line in found))), flush=True)

        with twins.made(hook) as both:
            served = serve_folders(both, max(1, options.folders // len(hooks)), options.seed, report)
        print(f"{hook}: {served} folders, {count} of them differ", flush=True)
        differing += count
    return 1 if differing else 0


def _beside_kube_proxy(folders: int, number: int) -> int:
    from tests.kube_api.programs import build_programs, find_kube_proxy
    from tests.oracle import kube_proxy_side

    programs, binary = build_programs(print), find_kube_proxy()
    if binary is None:
        sys.exit("no kube-proxy: KUBE_PROXY=FILE, on PATH, or built by `make fetch`")
    print(f"SEED={number}", flush=True)
    found: list[str] = []

    def report(folder: Folder, lines: list[str]) -> None:
        found.append("\n".join((f"kube-proxy: {folder}", *(f"    {line}" for line in lines))))
        print(found[-1], flush=True)

    with tempfile.TemporaryDirectory() as home, kube_proxy_side.made(programs, binary, Path(home) / "kube") as both:
        design = kube_proxy_side.NftablesAndKubeProxy()
        served = serve_folders(both, folders, number, report, design=design, as_served=kube_proxy_side.plain)
    print(f"kube-proxy: {served} folders, {len(found)} of them differ", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
