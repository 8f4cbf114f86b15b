"""The provider's --config file: read once, and again when it changes. A ConfigMap of a Pod changes by another link."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from lbagent.cloud.providers import read_config, with_file_name
from lbagent.errors import ConfigError

log = logging.getLogger(__name__)
LOOK_S = 1.0  # between two looks at the file


class ConfigFile:
    """The text of the file as it was good last; None without a file."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError when the file cannot be read."""
        self.path = path
        self.text = read_config(path)

    async def follow(self, use: Callable[[str], None]) -> None:
        """Give each other text of the file to `use`, until cancelled. What that refuses is said, and changes nothing."""
        seen: str | ConfigError | None = self.text
        while self.path:
            await asyncio.sleep(LOOK_S)
            now: str | ConfigError | None
            try:
                now = await asyncio.to_thread(read_config, self.path)
            except ConfigError as error:
                now = error
            if str(now) == str(seen):
                continue
            seen = now
            try:
                if isinstance(now, ConfigError):
                    raise now
                assert now is not None
                with with_file_name(self.path):
                    use(now)
            except ConfigError as error:
                log.error("the configuration is not used; what was in force stays", extra={"error": str(error)})
            else:
                self.text = now
                log.info("the configuration was read again", extra={"file": self.path})
