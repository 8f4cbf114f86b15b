"""Provider `none`: no balancers."""

from __future__ import annotations

from lbagent.cloud.provider import CONFIG, CloudProvider, ConfigError


class NoneProvider(CloudProvider):
    """Has no parts."""

    name = "none"

    def __init__(self, config: str | None) -> None:
        """Raises ConfigError for any configuration."""
        if config and config.strip():
            raise ConfigError("provider none has no configuration", file=CONFIG, line=1)
