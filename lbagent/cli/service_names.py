"""The names of the Services of frontends: of the agent, else of the file of frontend owners that an agent keeps."""

from __future__ import annotations

import json
import os

from lbagent.api.client import AgentClient
from lbagent.defaults import FRONTEND_OWNERS_FILE
from lbagent.errors import AgentUnreachable, LbError

_TIMEOUT_S = 10.0
_ANY_ADDRESS = ("0.0.0.0", "[::]")  # noqa: S104 - of the frontends of NodePorts at any address of the node


class ServiceNames:
    """NAMESPACE/NAME by id and by frontend. `is_complete`: the agent has answered."""

    def __init__(self) -> None:
        self.is_complete = False
        self._by_id: dict[int, str] = {}
        self._by_frontend: dict[str, str] = {}

    @classmethod
    def read(cls, socket: str, state_dir: str, *, service: str = "", vip: str = "") -> ServiceNames:
        """Return the names; `service`, `vip`: only those of a Service, or of a frontend."""
        names = cls()
        namespace, _, name = service.partition("/")
        try:
            rows = AgentClient(socket, timeout_s=_TIMEOUT_S).services(namespace, name, vip)
        except LbError:
            names._read_file(os.path.join(state_dir, FRONTEND_OWNERS_FILE))
            return names
        names.is_complete = True
        if any(row.get("restored") for row in rows):  # an agent that has not read its objects yet has no names
            names._read_file(os.path.join(state_dir, FRONTEND_OWNERS_FILE))
        for row in rows:
            found = f"{row['namespace']}/{row['name']}"
            if row.get("restored"):
                found = names._by_frontend.get(row["frontend"], found)
            names._by_id[row["id"]] = found
            names._by_frontend[row["frontend"]] = found
        return names

    def _read_file(self, path: str) -> None:
        """Read the owners of frontends; a file that is not there or not readable has none."""
        try:
            with open(path, "rb") as file:
                owners = json.load(file)["owners"]
            self._by_frontend = {frontend: name for name, frontends in owners.items() for frontend in frontends}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return

    @property
    def frontends(self) -> list[str]:
        """The frontends whose Service is known."""
        return list(self._by_frontend)

    def require(self, service: str) -> None:
        """Raise AgentUnreachable if it is not known which frontends a Service has."""
        if service and not self.is_complete and service not in self._by_frontend.values():
            raise AgentUnreachable(
                f"--service {service}: no agent answers, and its file of frontend owners does not name this Service; "
                "use --frontend, or start the agent"
            )

    def of(self, ident: int, frontend: str) -> str | None:
        """Return the Service of a frontend by its id (0: unknown), else by its text; None: no Service is known."""
        found = self._by_id.get(ident) or self._by_frontend.get(frontend)
        if found is None and not ident:
            end = frontend.rpartition(":")[2]
            found = next((name for any_of in _ANY_ADDRESS if (name := self._by_frontend.get(f"{any_of}:{end}"))), None)
        return found
