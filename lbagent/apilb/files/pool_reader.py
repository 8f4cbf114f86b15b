"""Reads pools, one after the other, into instances; records missing fields, and names, paths and binds that two of them share."""

from __future__ import annotations

import posixpath
from collections.abc import Hashable
from typing import Any

import msgspec

from lbagent.apilb.files.field_values import check_name, parse_bind
from lbagent.apilb.files.pool_document import PoolDocument
from lbagent.apilb.files.pool_settings import (
    DEFAULT_ON_MARKED_DOWN,
    DEFAULT_PATH,
    InheritedSettings,
    SshSettings,
    explicit_values,
    inherited,
    read_settings,
    read_ssh,
)
from lbagent.apilb.files.section import Section
from lbagent.apilb.files.state_file import Deployed, read_state_of_pool
from lbagent.apilb.instance import DEFAULT_NAME, DIRECT, Instance, Mode, SshAccess
from lbagent.probes.probe_spec import ProbeSpec
from lbagent.textfile.field_path import FieldPath, path_text

DEFAULT_POOL = "default"  # a pool at the top level of a document has no name
INSTANCES = "apiLoadBalancers"
NO_INSTANCES = "at least one load balancer must be defined if state is empty"
NO_SERVERS = "at least one server must be set"
NO_BIND = "bindAddress can't be empty"
TWO_HOSTS = "host must have only one transport method defined"
NO_LOG_IN = "one of password, privateKey and privateKeyFile must be set, or an agent in SSH_AUTH_SOCK"


class PoolReader:
    """The pools of one document."""

    def __init__(self, document: PoolDocument, *, mode: Mode | None, can_ask_agent: bool) -> None:
        self.document = document
        self.instances: list[Instance] = []
        self.deployed = Deployed()
        self.state_is_faulty = False  # then it is unknown whether a pool is in it
        self.ssh: dict[str, SshSettings] = {}
        self._mode, self._can_ask_agent = mode, can_ask_agent
        self._places: list[FieldPath] = []  # of the instances

    def pool(self, name: str, section: Section) -> None:
        """Read a pool."""
        try:
            check_name(name)
        except ValueError as error:
            self.document.fault(section.at, str(error))
        pools, ssh = read_settings(section), section.section("ssh")
        if ssh:
            self.ssh[name] = read_ssh(ssh)
        settings = msgspec.structs.replace(pools, ssh=self.ssh.get(name))
        self._read_own_state(name, section)
        each = section.sections(INSTANCES)
        if not (each or self.deployed.of_pool(name) or self.state_is_faulty or section.is_faulty(INSTANCES)):
            section.fault(INSTANCES, NO_INSTANCES)
        for instance in each:
            self._instance(name, instance, settings, section)
        if section.at:
            section.note_unknown_keys()

    def _read_own_state(self, name: str, section: Section) -> None:
        """Read the state inside a pool of several, where no other state has it."""
        own = section.section("state") if section.at else None
        if own and not self.deployed.of_pool(name):
            recorded = read_state_of_pool(own, name)
            self.deployed = msgspec.structs.replace(self.deployed, recorded=(*self.deployed.recorded, *recorded))

    def _instance(self, pool: str, section: Section, pools: InheritedSettings, around: Section) -> None:
        own = read_settings(section)
        settings = msgspec.structs.replace(
            pools, **explicit_values(own) | {"health_check": inherited(own.health_check, pools.health_check)}
        )
        ssh, direct = self._host(section, pools.ssh)
        section.note_unknown_keys()
        mode = self._mode or settings.mode or Mode.HAPROXY
        if not settings.servers and not (section.is_faulty("servers") or around.is_faulty("servers")):
            section.fault("servers", NO_SERVERS)
        if not settings.bind_address and not (section.is_faulty("bindAddress") or around.is_faulty("bindAddress")):
            section.fault("bindAddress", NO_BIND)
        if settings.bind_address and mode is Mode.NATIVE and not parse_bind(settings.bind_address).is_ip:
            where = section if "bindAddress" in section else around
            where.fault("bindAddress", f"{settings.bind_address!r}: native mode needs an address, not a name")
        if settings.servers and settings.bind_address and (ssh or direct):
            self.instances.append(_made(pool, settings, ssh, mode))
            self._places.append(section.at)

    def _host(self, section: Section, pools: SshSettings | None) -> tuple[SshAccess | None, bool]:
        """Return the access to the host, and whether it is this one; neither for an invalid value."""
        host = section.section("host")
        direct, own = (host.section("direct"), host.section("ssh")) if host else (None, None)
        if direct:
            direct.note_unknown_keys()
        if host:
            host.note_unknown_keys()
        settings = read_ssh(own) if own else None
        if direct and own:
            section.fault("host", TWO_HOSTS)
            return None, False
        if direct or not (own or pools):
            return None, True
        merged = inherited(settings, pools)
        assert merged is not None
        return self._checked(merged, (*section.at, "host", "ssh"), own), False

    def _checked(self, settings: SshSettings, at: FieldPath, own: Section | None) -> SshAccess | None:
        if not settings.address:
            if not (own and own.is_faulty("address")):
                self.document.fault((*at, "address"), "address must be set")
            return None
        if not settings.can_log_in and not self._can_ask_agent:
            self.document.fault(at, NO_LOG_IN)
        return SshAccess(**explicit_values(settings))

    def note_duplicates(self) -> None:
        """Record each name, path and bind that two instances of a host share."""
        seen: dict[tuple[Hashable, ...], FieldPath] = {}
        for instance, at in zip(self.instances, self._places, strict=True):
            host = (instance.ssh.address, instance.ssh.port) if instance.ssh else DIRECT
            for key, shown, value in _unique_on_a_host(instance):
                first = seen.setdefault((host, key, value), at)
                if first is not at:
                    problem = f"{shown!r} is that of {path_text(first)} too, on the same host ({instance.host})"
                    self.document.fault((*at, key), problem)


def _unique_on_a_host(instance: Instance) -> tuple[tuple[str, str, Hashable], ...]:
    return (
        ("name", instance.name, instance.name),
        ("hostConfigPath", instance.host_config_path, posixpath.normpath(instance.host_config_path)),
        ("bindAddress", instance.bind_address, parse_bind(instance.bind_address)),
    )


def _made(pool: str, settings: InheritedSettings, ssh: SshAccess | None, mode: Mode) -> Instance:
    given: dict[str, Any] = explicit_values(settings)
    name = given.setdefault("name", DEFAULT_NAME)
    given.setdefault("host_config_path", DEFAULT_PATH[mode].format(name=name))
    given.setdefault("on_marked_down", DEFAULT_ON_MARKED_DOWN[mode])
    if settings.health_check:
        given["health_check"] = ProbeSpec(**explicit_values(settings.health_check))
    return Instance(**given | {"pool": pool, "ssh": ssh, "mode": mode})
