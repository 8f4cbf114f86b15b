"""Pool files as texts."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lbagent.apilb.files import pool_files
from lbagent.apilb.files.pool_document import PoolDocument
from lbagent.apilb.files.pool_files import PoolFiles


def parse_pool_text(text: str, path: str, *, environ: Mapping[str, str] = os.environ) -> PoolFiles:
    """Read the text of one file; `path` is its name in messages. Raises PoolFaults."""
    document = PoolDocument()
    document.add_text(text, path)
    return pool_files._read(document, PoolDocument(), strict=False, mode=None, environ=environ)
