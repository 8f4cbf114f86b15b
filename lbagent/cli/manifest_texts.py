"""The manifests of a folder or file as texts, for a request to the agent, which may see other files than this process."""

from __future__ import annotations

import sys
from pathlib import Path

from lbagent.errors import ConfigError

SUFFIXES = (".yaml", ".yml", ".json")
MAX_BYTES = 900_000  # of all texts: a request has at most a MiB


def manifest_texts(path: str) -> list[dict[str, str]]:
    """Return name and text of each file: of a folder, a single one, or stdin for `-`. Raises ConfigError."""
    if path == "-":
        return _limited([{"name": "stdin.yaml", "text": sys.stdin.read()}], path)
    root = Path(path)
    try:
        files = sorted(root.iterdir()) if root.is_dir() else [root]
        return _limited(
            [
                {"name": file.name, "text": file.read_text(encoding="utf-8")}
                for file in files
                if file == root or (file.suffix in SUFFIXES and not file.name.startswith("."))
            ],
            path,
        )
    except OSError as error:
        raise ConfigError(f"-f {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"-f {path}: a file is not UTF-8 text") from None


def _limited(texts: list[dict[str, str]], path: str) -> list[dict[str, str]]:
    size = sum(len(each["text"].encode()) for each in texts)
    if size > MAX_BYTES:
        raise ConfigError(f"-f {path}: {size} bytes of manifests; at most {MAX_BYTES} can be explained at once")
    return texts
