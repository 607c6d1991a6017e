"""What stand-ins for clouds have in common: the clusters of a local fleet that they give out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from localfleet.fleet import Fleet


@dataclass(frozen=True)
class ApiServer:
    """Where the API server of a cluster is, and the certificates that its own is checked against, in base64."""

    url: str
    authority: str


def nowhere(name: str) -> ApiServer:
    return ApiServer(f"https://{name}.invalid", "Y2E=")


@dataclass
class GivenOut:
    """Clusters of a local fleet, by name, that clusters of a cloud are: each takes the first that is free."""

    api_servers: Mapping[str, ApiServer] = field(default_factory=dict[str, ApiServer])
    to: dict[str, str] = field(default_factory=dict[str, str])
    """Which of them each cluster of the cloud is."""

    def api_server(self, cluster: str) -> ApiServer:
        free = [name for name in self.api_servers if name not in self.to.values()]
        if cluster not in self.to and not free:
            return nowhere(cluster)
        return self.api_servers[self.to.setdefault(cluster, next(iter(free), ""))]

    def is_one(self, local: str) -> bool:
        return local in self.to.values()


def given_out(fleet: Fleet, *workers: str) -> GivenOut:
    return GivenOut({worker: _api_server(fleet, worker) for worker in workers})


def _api_server(fleet: Fleet, worker: str) -> ApiServer:
    config: Any = yaml.safe_load(fleet.inner_kubeconfig(worker).read_text())
    cluster: Mapping[str, str] = config["clusters"][0]["cluster"]
    return ApiServer(cluster["server"], cluster["certificate-authority-data"])
