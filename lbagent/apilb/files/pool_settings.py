"""The keys that a pool and its instances have: inheritance and defaults."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from lbagent.apilb.files import field_values
from lbagent.apilb.files.section import Section
from lbagent.apilb.instance import Mode, OnMarkedDown, Secret

S = TypeVar("S", bound=Struct)
DEFAULT_PATH = {Mode.HAPROXY: "/etc/haproxy/haproxy.cfg", Mode.NATIVE: "/etc/lbagent/apilb.d/{name}.yaml"}
DEFAULT_ON_MARKED_DOWN = {Mode.HAPROXY: OnMarkedDown.KEEP, Mode.NATIVE: OnMarkedDown.RESET}
MAX_S = 24 * 3600.0
MAX_CHECKS = 1000


class SshSettings(Struct, frozen=True, kw_only=True):
    """The mapping `ssh`; None: not given. Names as in SshAccess."""

    address: str | None = None
    user: str | None = None
    port: int | None = None
    password: Secret | None = None
    private_key: Secret | None = None
    private_key_file: str | None = None
    connection_timeout: float | None = None
    retry_timeout: float | None = None
    retry_interval: float | None = None
    host_key: str | None = None
    known_hosts_file: str | None = None
    insecure_ignore_host_key: bool | None = None

    @property
    def can_log_in(self) -> bool:
        """Whether there is a password or a key."""
        return bool(self.password or self.private_key or self.private_key_file)


class CheckSettings(Struct, frozen=True, kw_only=True):
    """The mapping `healthCheck`; None: not given. Names as in ProbeSpec."""

    path: str | None = None
    interval: float | None = None
    timeout: float | None = None
    fall: int | None = None
    rise: int | None = None
    ca_file: str | None = None
    host: str | None = None


class InheritedSettings(Struct, frozen=True, kw_only=True):
    """The keys that a pool and an instance have; None: not given."""

    name: str | None = None
    image: str | None = None
    mode: Mode | None = None
    bind_address: str | None = None
    servers: tuple[str, ...] | None = None
    host_config_path: str | None = None
    on_marked_down: OnMarkedDown | None = None
    docker_host: str | None = None
    post_start: tuple[str, ...] | None = None
    health_check: CheckSettings | None = None
    ssh: SshSettings | None = None


def explicit_values(settings: Struct) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name in settings.__struct_fields__ if (value := getattr(settings, name)) is not None}


def inherited(own: S | None, pools: S | None) -> S | None:
    """Return the values of an instance; for each missing field that of its pool."""
    if own is None or pools is None:
        return own or pools
    return msgspec.structs.replace(pools, **explicit_values(own))


def read_settings(section: Section) -> InheritedSettings:
    """Read the keys of a pool or an instance, without its host."""
    check, runtime = section.section("healthCheck"), section.section("runtime")
    return InheritedSettings(
        name=section.text("name", field_values.check_name),
        image=section.text("image", field_values.check_image),
        mode=section.choice("mode", Mode),
        bind_address=section.text("bindAddress", field_values.parse_bind),
        servers=section.words("servers", field_values.parse_server),
        host_config_path=section.text("hostConfigPath", field_values.check_config_path),
        on_marked_down=section.choice("onMarkedDown", OnMarkedDown),
        docker_host=_docker_host(runtime) if runtime else None,
        post_start=section.words("postStart", field_values.check_word),
        health_check=_health_check(check) if check else None,
    )


def read_ssh(section: Section) -> SshSettings:
    """Read a mapping `ssh`."""
    found = SshSettings(
        address=section.text("address", field_values.check_address),
        user=section.text("user", field_values.check_word),
        port=section.number("port", 1, 65535)
        if section.value("port") != 0
        else None,  # 0 is Go's zero value: not given
        password=section.secret("password"),
        private_key=section.secret("privateKey", field_values.check_private_key),
        private_key_file=section.text("privateKeyFile"),
        connection_timeout=section.seconds("connectionTimeout", 0.001, MAX_S),
        retry_timeout=section.seconds("retryTimeout", 0, MAX_S),
        retry_interval=section.seconds("retryInterval", 0, MAX_S),
        host_key=section.text("hostKey", field_values.check_host_key),
        known_hosts_file=section.text("knownHostsFile"),
        insecure_ignore_host_key=section.flag("insecureIgnoreHostKey"),
    )
    section.note_unknown_keys()
    return found


def _health_check(section: Section) -> CheckSettings:
    found = CheckSettings(
        path=section.text("path", field_values.check_url_path),
        interval=section.seconds("interval", 0.01, MAX_S),
        timeout=section.seconds("timeout", 0.01, MAX_S),
        fall=section.number("fall", 1, MAX_CHECKS),
        rise=section.number("rise", 1, MAX_CHECKS),
        ca_file=section.text("caFile", field_values.check_file),
        host=section.text("host", field_values.check_host_header),
    )
    section.note_unknown_keys()
    return found


def _docker_host(section: Section) -> str | None:
    docker = section.section("docker")
    found = docker.text("host", field_values.check_docker_host) if docker else None
    for each in (section, docker):
        if each:
            each.note_unknown_keys()
    return found
