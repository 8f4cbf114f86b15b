"""Rights and tokens by a real authorizer: the shipped role is sufficient, each of its rules is needed, and a missing one is reported."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lbagent.objects.object_event import ObjectEvent
from tests.kube_api.cluster import BINDING, HOME, Cluster, collection, manifest
from tests.kube_api.control_plane import ACCOUNT, ACCOUNT_NAMESPACE, ControlPlane
from tests.kube_api.following import Following, following, settings
from tests.kube_api.proxy import Proxy

pytestmark = [pytest.mark.root]
RULES = next(obj["rules"] for obj in manifest() if obj["kind"] == "ClusterRole")
READ = [rule for rule in RULES if rule["verbs"] == ["list", "watch"]]
OPTIONAL = ("backendstates", "servicecidrs", "localredirectpolicies", "ciliumlocalredirectpolicies")
ACCOUNTS = f"/api/v1/namespaces/{ACCOUNT_NAMESPACE}/serviceaccounts"
EVENT = ObjectEvent("Service", "default/web", "Tried", "a sentence", warning=True)


def name_of(rule: dict[str, Any]) -> str:
    return ",".join(rule["resources"])


@pytest.fixture
def shop(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with one object of each kind that is read; all rights are restored after the test."""
    cluster.install_backend_states()
    cluster.add_service("web")
    cluster.add_pod("web-0", "web", "10.244.0.10", ports=[{"containerPort": 8080, "hostPort": 8081}])
    cluster.add_backend_state("web-0", address="10.244.0.10:8080", state="maintenance")
    yield cluster
    cluster.set_rules(RULES)


def is_all_there(one: Following) -> bool:
    seen = one.source.snapshot()
    return bool(
        "default/web" in seen.services
        and one.addresses("web")
        and seen.nodes
        and "default/web-0" in seen.pods
        and "kubernetes" in seen.service_cidrs
        and "web-0" in seen.backend_states
        and one.source.trusted
        and not one.texts
    )


async def test_the_shipped_role_is_enough(shop: Cluster, config: Path) -> None:
    before = len(shop.plane.requests())  # of other tests' agents, which may have more rights
    async with following(settings(config)) as one:
        await one.until(lambda: is_all_there(one), "everything")
        one.source.events.write(EVENT)
        await one.until(shop.events, "the Event")
        (event,) = shop.events()
        assert event["reason"] == "Tried"
        assert event["type"] == "Warning"
        assert event["source"]["component"] == "lbagent"
        uid = shop.plane.ask("GET", f"{HOME}/services/web")["metadata"]["uid"]
        assert event["involvedObject"]["uid"] == uid
        assert {(each.verb, each.resource) for each in shop.plane.requests()[before:]} <= allowed()


def allowed() -> set[tuple[str, str]]:
    return {(verb, resource) for rule in RULES for verb in rule["verbs"] for resource in rule["resources"]}


@pytest.mark.parametrize("rule", READ, ids=name_of)
async def test_a_resource_that_may_not_be_read_is_named(shop: Cluster, config: Path, rule: dict[str, Any]) -> None:
    shop.set_rules([each for each in RULES if each != rule])
    async with following(settings(config), synced=False) as one:
        await one.until(lambda: "403" in one.texts, "the message")
        assert any(f"{verb} {name_of(rule)}" in one.texts for verb in rule["verbs"]), one.texts
        assert not is_all_there(one)
        shop.set_rules(RULES)
        if name_of(rule) not in OPTIONAL:  # those are requested again after minutes
            await one.until(lambda: is_all_there(one), "everything")


async def test_without_the_uid_of_the_server_it_follows_and_says_so_once(
    shop: Cluster, proxy: Proxy, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop.set_rules([rule for rule in RULES if name_of(rule) != "namespaces"])
    caplog.set_level(logging.WARNING)
    async with following(settings(config)) as one:
        await one.until(lambda: is_all_there(one), "everything")
        proxy.cut()
        shop.add_service("more")
        await one.until(lambda: "default/more" in one.source.snapshot().services and one.source.trusted)
        assert caplog.text.count("get the namespace kube-system") == 1


async def test_an_event_that_may_not_be_written_is_said_once_and_stops_nothing(
    shop: Cluster, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop.set_rules([rule for rule in RULES if name_of(rule) != "events"])
    caplog.set_level(logging.WARNING)
    async with following(settings(config)) as one:
        for _ in range(3):
            one.source.events.write(EVENT)
        await one.until(lambda: "create events" in caplog.text, "the log line")
        shop.add_service("more")
        await one.until(lambda: "default/more" in one.source.snapshot().services)
        assert caplog.text.count("create events") == 1
        assert not shop.events()


async def test_rights_that_are_taken_away_while_it_runs(
    shop: Cluster, proxy: Proxy, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    binding = next(obj for obj in manifest() if obj["kind"] == "ClusterRoleBinding")
    async with following(settings(config)) as one:
        await one.until(lambda: is_all_there(one), "everything")
        shop.plane.ask("DELETE", f"{BINDING}/lbagent")
        try:
            proxy.cut()
            await one.until(lambda: "403" in one.texts and not one.source.trusted, "the message")
            assert "default/web" in one.source.snapshot().services
            assert one.addresses("web")
        finally:
            shop.plane.ask("POST", collection(binding), binding)
        await one.until(lambda: is_all_there(one), "everything again")
        assert not one.deleted
    refusals = [record for record in caplog.records if "the Kubernetes API failed" in record.message]
    assert len(refusals) <= 6  # one for each resource
    subjects = [record.__dict__["error"].partition(":")[0] for record in refusals]
    assert len(subjects) == len(set(subjects)), subjects


async def test_a_token_that_is_revoked(shop: Cluster, plane: ControlPlane, proxy: Proxy, config: Path) -> None:
    account = next(obj for obj in manifest() if obj["kind"] == "ServiceAccount")
    async with following(settings(config)) as one:
        await one.until(lambda: is_all_there(one), "everything")
        plane.ask("DELETE", f"{ACCOUNTS}/{ACCOUNT}")
        try:
            for _ in range(30):  # the server caches tokens for 10 s
                proxy.cut()
                with contextlib.suppress(AssertionError):
                    await one.until(lambda: "401" in one.texts, within_s=2)
                    break
            assert "the credentials are refused" in one.texts
            assert one.addresses("web")
        finally:
            plane.ask("POST", ACCOUNTS, account)
        plane.kubeconfig(plane.agent_token(), config, proxy.port)
        await one.until(lambda: is_all_there(one), "everything again")
        assert not one.deleted
