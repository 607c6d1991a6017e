"""Compute Engine, Service Usage and Filestore, as far as the operator uses them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from google.cloud import compute_v1

from tests.support.google.state import Refused, State, missing, needed, taken

ROOT = "https://www.googleapis.com/compute/v1"


class Rest:
    def __init__(self, state: State, project: str, region: str) -> None:
        self._state, self._project, self._region = state, project, region

    def answer(self, method: str, path: str, query: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
        """By the path behind the version."""
        service, _, rest = path.strip("/").partition("/")
        version, _, rest = rest.partition("/")
        prefix = f"projects/{self._project}"
        assert version == "v1"
        if not f"{rest}/".startswith(f"{prefix}/"):
            raise Refused("PERMISSION_DENIED", 403, "forbidden", f"no permission on {rest}")
        within = rest.removeprefix(prefix).removeprefix("/")
        said = json.loads(body) if body else {}
        match service:
            case "serviceusage":
                return self._service(method, within)
            case "file":
                return self._files(method, within)
            case _:
                return self._compute(method, within, query, said)

    def _service(self, method: str, path: str) -> Mapping[str, Any]:
        name = path.removeprefix("services/").removesuffix(":enable")
        if method == "POST":
            self._state.begin("enable", path, "service", lambda: self._state.services.add(name))
            return {"name": "operations/acat.p2-1"}
        return {"name": name, "state": "ENABLED" if name in self._state.services else "DISABLED"}

    def _files(self, method: str, path: str) -> Mapping[str, Any]:
        if "file.googleapis.com" not in self._state.services:
            raise Refused("PERMISSION_DENIED", 403, "SERVICE_DISABLED", "The API is disabled")
        if method == "DELETE":
            return self._gone(path)
        found = [one for path, one in self._state.others.items() if "/instances/" in path]
        return {"instances": found}

    def _compute(self, method: str, path: str, query: Mapping[str, str], said: dict[str, Any]) -> Mapping[str, Any]:
        if "compute.googleapis.com" not in self._state.services:
            raise Refused("PERMISSION_DENIED", 403, "accessNotConfigured", "The API is disabled")
        collection, _, name = path.rpartition("/")
        if path in ("", f"regions/{self._region}"):
            kind: Any = compute_v1.Region if path else compute_v1.Project
            listed = [
                {"metric": metric, "limit": limit, "usage": used}
                for metric, (limit, used) in self._state.quotas.items()
            ]
            return _checked(kind, {"name": self._region if path else self._project, "quotas": listed})
        if match := re.fullmatch("zones/[^/]+/(machineTypes|acceleratorTypes)/([^/]+)", path):
            if match[2] in self._state.absent:
                raise missing(f"projects/{self._project}/{path}")
            if match[1] == "machineTypes":
                return _checked(compute_v1.MachineType, {"name": match[2], "guestCpus": 4})
            return _checked(compute_v1.AcceleratorType, {"name": match[2]})
        if path.endswith("operations"):
            return {"items": self._operations(query)}
        if path.startswith("aggregated/"):
            kind = path.removeprefix("aggregated/")
            found = [one for where, one in self._state.others.items() if f"/{kind}/" in where]
            return {"items": {"zones/us-central1-a": {kind: found}, "global": {"warning": {"code": "NO_RESULTS"}}}}
        if name == "removePeering":
            return self._unpeered(collection.rpartition("/")[2], said)
        if method == "POST":
            return self._made(path, said)
        known = {
            "global/networks": self._state.networks,
            f"regions/{self._region}/subnetworks": self._state.subnetworks,
        }
        if collection in known:
            if name not in known[collection]:
                raise missing(path)
            return known[collection][name] if method == "GET" else self._deleted(collection, name, known[collection])
        if method == "DELETE":
            return self._gone(path)
        return {"items": [self._linked(where, one) for where, one in self._state.others.items() if path in where]}

    def _made(self, path: str, said: dict[str, Any]) -> Mapping[str, Any]:
        kind: Any = compute_v1.Network if path == "global/networks" else compute_v1.Subnetwork
        kind.from_json(json.dumps(said), ignore_unknown_fields=False)  # what Google's own library has no field for
        name, store = said["name"], self._state.networks if kind is compute_v1.Network else self._state.subnetworks
        if name in store or any(
            one.target.endswith(f"{path}/{name}") and not one.done for one in self._state.operations
        ):
            raise taken(name)
        if kind is compute_v1.Subnetwork:
            network = said["network"].rpartition("/")[2]
            if network not in self._state.networks:
                raise Refused("INVALID_ARGUMENT", 400, "resourceNotReady", f"The resource '{network}' is not ready")
        takes = "network" if kind is compute_v1.Network else "subnetwork"
        error = self._state.fail_next.pop(takes, "")

        def finish() -> None:
            if not error:
                store[name] = self._linked(f"{path}/{name}", said)

        return self._begun("insert", f"{path}/{name}", takes, finish, error)

    def _unpeered(self, network: str, said: dict[str, Any]) -> Mapping[str, Any]:
        compute_v1.NetworksRemovePeeringRequest.from_json(json.dumps(said), ignore_unknown_fields=False)
        item = self._state.networks[network]

        def finish() -> None:
            item["peerings"] = [one for one in item["peerings"] if one["name"] != said["name"]]

        return self._begun("removePeering", f"global/networks/{network}", "network", finish)

    def _deleted(self, collection: str, name: str, store: dict[str, Any]) -> Mapping[str, Any]:
        if collection == "global/networks" and (user := self._state.network_is_used(name)):
            raise needed(name, user)
        if collection != "global/networks":
            for one in self._state.clusters.values():
                if one.subnetwork == name:
                    raise needed(name, one.name)
        return self._begun("delete", f"{collection}/{name}", "network", lambda: store.pop(name, None) and None)

    def _gone(self, path: str) -> Mapping[str, Any]:
        if path not in self._state.others:
            raise missing(path)
        return self._begun("delete", path, "network", lambda: self._state.others.pop(path, None) and None)

    def _begun(self, kind: str, path: str, takes: str, finish: Any, error: str = "") -> Mapping[str, Any]:
        if self._state.is_busy(self._link(path)):
            raise Refused("INVALID_ARGUMENT", 400, "resourceNotReady", f"The resource '{path}' is not ready")
        return {"name": self._state.begin(kind, self._link(path), takes, finish, error).name}

    def _operations(self, query: Mapping[str, str]) -> list[Mapping[str, Any]]:
        pattern = query["filter"].removeprefix("targetLink eq ")
        found: list[Mapping[str, Any]] = []
        for one in self._state.operations:
            if re.fullmatch(pattern, one.target):
                item: dict[str, Any] = {
                    "name": one.name,
                    "operationType": one.kind,
                    "status": "DONE" if one.done else "RUNNING",
                    "targetLink": one.target,
                    "insertTime": one.began.isoformat(),
                }
                if one.done:
                    item["endTime"] = one.ends.isoformat()
                if one.done and one.error:
                    item["error"] = {"errors": [{"code": "QUOTA_EXCEEDED", "message": one.error}]}
                found.append(item)
        return found

    def _link(self, path: str) -> str:
        return f"{ROOT}/projects/{self._project}/{path}"

    def _linked(self, path: str, said: Mapping[str, Any]) -> dict[str, Any]:
        return {**said, "selfLink": self._link(path)}


def _checked(kind: Any, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """What Google's own library knows as one of that kind."""
    kind.from_json(json.dumps(said), ignore_unknown_fields=False)
    return said
