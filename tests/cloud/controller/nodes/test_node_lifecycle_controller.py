"""A Node is deleted after two consecutive definite answers, and only then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.cloud.controller.nodes.node_lifecycle_controller import NodeLifecycleController
from lbagent.cloud.controller.watched_objects import WatchedNode
from lbagent.cloud.provider import InstanceMetadata, InstanceNotFound, InstancesV2, Node, NotSupported, RetryAfter
from lbagent.errors import LbError

SILENT = "silent"
ANSWERS = {
    "yes": True, "no": False, "none": None, "zero": 0, "text": "", "error": LbError("quota"), "time-out": TimeoutError(),
    "defect": KeyError("x"), "not found": InstanceNotFound(), "not supported": NotSupported(), "later": RetryAfter("later", 1),
    "network": OSError(110, "x"), SILENT: None,
}  # fmt: skip
READY = "ready"  # no call: the Node is ready at this check


class Machines(InstancesV2):
    def __init__(self) -> None:
        self.answer = "yes"

    async def exists(self, node: Node) -> bool:
        if self.answer == SILENT:
            await asyncio.sleep(60)
        found = ANSWERS[self.answer]
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[return-value]

    async def is_shut_down(self, node: Node) -> bool:
        return False

    async def metadata(self, node: Node) -> InstanceMetadata | None:
        return None


class Server:
    """The Node in informers and writer."""

    def __init__(self) -> None:
        self.record, self.deletions = Node(name="n", uid="1"), 0

    def nodes(self) -> list[WatchedNode]:
        return [WatchedNode("n", record=self.record)]

    def node(self, name: str) -> WatchedNode:
        return self.nodes()[0]

    def version_of_node(self, name: str) -> str:
        return "7"

    async def delete(self, node: Node, version: str) -> None:
        assert (node.uid, version) == (self.record.uid, "7")
        self.deletions += 1


def deletions(answers: list[str]) -> list[int]:
    """Return how often the Node was deleted after each of these checks."""

    async def look() -> list[int]:
        server, machines, found = Server(), Machines(), []
        here: Any = server
        controller = NodeLifecycleController(machines, here, here, lambda *_: None, period_s=1, call_s=0.002)
        for answer in answers:
            machines.answer = answer
            server.record = Node(
                name="n", uid="2" if answer == "replaced" else server.record.uid, ready=answer == READY
            )
            machines.answer = "no" if answer in (READY, "replaced") else answer
            await controller.look()
            found.append(server.deletions)
        return found

    return asyncio.run(look())


@pytest.mark.long
@given(st.lists(st.sampled_from(["no", "no", *ANSWERS, READY]), max_size=12))
def test_two_clear_answers_in_a_row(answers: list[str]) -> None:
    run, expected, found = 0, 0, []
    for answer in answers:
        run = run + 1 if answer == "no" else 0
        expected += run >= 2
        found.append(expected)
    assert deletions(answers) == found


def test_another_node_of_that_name_begins_anew() -> None:
    assert deletions(["no", "replaced", "no"]) == [0, 0, 1]


def test_nothing_is_kept_of_a_node_that_is_gone() -> None:
    async def look() -> None:
        server, machines = Server(), Machines()
        here: Any = server
        controller = NodeLifecycleController(machines, here, here, lambda *_: None, period_s=1)
        machines.answer = "no"
        await controller.look()
        assert controller._absent == {"1": 1}
        server.nodes = list  # type: ignore[method-assign, assignment]
        await controller.look()
        assert controller._absent == {}

    asyncio.run(look())
