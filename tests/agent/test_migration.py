"""The request of `lbagent migrate`, which lasts over restarts: without a kernel."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from lbagent.agent.migration import Migration, MigrationRecord, migrated
from lbagent.api.migration_answers import MigrationRequest
from lbagent.config import Config
from lbagent.errors import ConfigError, Conflict, LbError, Refused


def shadow(folder: Path) -> Config:
    return Config(shadow=True, manifests=str(folder), state_dir=str(folder / "state"), node_name="n")


def running(config: Config) -> tuple[Migration, list[str]]:
    """Return the migration of an agent whose parts run, and what started them again."""
    made, again = Migration(lambda: config), []
    made.begin(made.load())
    made.again = lambda: again.append("again")
    return made, again


def request(migration: Migration, serves: bool, *renderers: str) -> None:
    async def run() -> None:
        await migration.request(MigrationRequest(serves, list(renderers)))
        await asyncio.sleep(0.3)

    asyncio.run(run())


def test_an_agent_with_shadow_serves_from_its_next_start_on(tmp_path: Path) -> None:
    config = shadow(tmp_path)
    migration, again = running(config)
    request(migration, True, "none")
    assert again == ["again"]
    assert not migration.status().serves, "its parts have not started again"
    effective = migrated(config)
    assert (effective.shadow, effective.renderer) == (False, ("none",))
    assert (effective.new_flows, effective.snat_ports) == ("syn", "256-1023")
    started = migration.begin(effective)
    assert started is not None
    assert started.serves
    assert migration.status().serves
    later = running(config)[0]
    assert later.status().serves, "another process"


def test_a_setting_of_the_operator_stays(tmp_path: Path) -> None:
    config = replace(shadow(tmp_path), snat_ports="600-900")
    MigrationRecord(config.state_dir).write(["none"])
    assert migrated(config).snat_ports == "600-900"


def test_without_shadow_nothing_can_be_requested_and_the_file_goes(tmp_path: Path) -> None:
    config = shadow(tmp_path)
    MigrationRecord(config.state_dir).write(["none"])
    plain = replace(config, shadow=False)
    assert migrated(plain) is plain
    migration, again = running(plain)
    with pytest.raises(Refused, match="without --shadow"):
        request(migration, True, "none")
    assert again == []
    assert migrated(config) == config, "the file of before has no effect later"


def test_what_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    config = shadow(tmp_path)
    migration, again = running(config)
    with pytest.raises(ConfigError, match="nonsense"):
        request(migration, True, "nonsense")
    assert again == []
    assert migrated(config).shadow


def test_one_migration_at_a_time(tmp_path: Path) -> None:
    migration, again = running(shadow(tmp_path))
    request(migration, True, "none")
    with pytest.raises(Conflict):
        request(migration, True, "none")
    assert again == ["again"]


def test_a_start_that_fails_only_compares_again(tmp_path: Path) -> None:
    config = shadow(tmp_path)
    migration, _ = running(config)
    request(migration, True, "none")
    migration.begin(migrated(config))
    migration.failed(LbError("no room"))
    migration.begin(migration.load())
    status = migration.status()
    assert (status.serves, status.error) == (False, "no room")


def test_flows_that_are_left_last_over_a_start_that_fails(tmp_path: Path) -> None:
    config = shadow(tmp_path)
    MigrationRecord(config.state_dir).write(["bpf"], is_left=True)
    migration, _ = running(config)
    assert (migration.status().serves, migration.status().is_left) == (False, True)
    request(migration, True, "none")
    assert migrated(config).renderer == ("none",)
    migration.begin(migrated(config))
    assert not migration.status().is_left
    migration.failed(LbError("no room"))
    migration.begin(migration.load())
    assert (migration.status().serves, migration.status().is_left) == (False, True)
    migration.forget_left()
    assert not migration.status().is_left
    assert migrated(config) == config


def test_a_file_that_cannot_be_read_counts_as_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = shadow(tmp_path)
    MigrationRecord(config.state_dir).write(["none"])
    next(Path(config.state_dir).iterdir()).write_text("{")
    assert migrated(config).shadow
    assert "the migration cannot be read" in caplog.text
