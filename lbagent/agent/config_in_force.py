"""The configuration in force: SIGHUP replaces it (reload.py)."""

from __future__ import annotations

from collections.abc import Mapping

from lbagent.config import Config, options


class ConfigInForce:
    """The settings, and which of them could not be applied."""

    def __init__(self, config: Config, problems: Mapping[str, str]) -> None:
        self.config = config
        self.problems = problems  # setting -> why it is not in force

    def by_key(self) -> dict[str, object]:
        """Return the settings by their key in the configuration file."""
        return {option.key: getattr(self.config, option.field) for option in options()}
