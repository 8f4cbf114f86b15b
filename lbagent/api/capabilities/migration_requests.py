"""`lbagent migrate`: an agent that was started with --shadow serves, or compares again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import Capability, Route

if TYPE_CHECKING:
    from lbagent.api.migration_answers import MigratingAgent, MigrationRequest, MigrationStatus


async def _request(migration: MigratingAgent, wanted: MigrationRequest) -> MigrationStatus:
    return await migration.request(wanted)


CAPABILITY: Capability[MigratingAgent] = Capability(
    routes=(
        Route(
            "migration",
            "GET",
            "/v1/migration",
            "lbagent.api.migration_answers:MigrationStatus",
            "whether the agent was started with `--shadow`, whether it serves, and why it could not",
            lambda migration: migration.status(),
        ),
        Route(
            "request_migration",
            "PUT",
            "/v1/migration",
            "lbagent.api.migration_answers:MigrationStatus",
            "has an agent with `--shadow` serve, or only compare; its parts start again; the state before",
            _request,
            body="lbagent.api.migration_answers:MigrationRequest",
        ),
    ),
)
