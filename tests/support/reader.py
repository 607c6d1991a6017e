"""Objects of a cluster for tests that ask again and again: a kubectl for each question takes a processor's time."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from localfleet.fleet import FleetError
from localfleet.kubeclient import Access, once, read_kubeconfig

Manifest = dict[str, Any]

GROUPS = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
METADATA = "application/json;g=meta.k8s.io;v=v1;as=PartialObjectMetadataList"
OK, NOT_FOUND = 200, 404


class Reader:
    """What an API server says, by kubectl's names for it; a kubeconfig that changes is read again."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._read = b""
        self._access: Access
        self._paths = dict[str, str]()

    def get(self, what: str, name: str, namespace: str = "") -> Manifest | None:
        """The object; None when there is none. Raises FleetError."""
        return self._asked(f"{self._collection(what).replace('NAMESPACE', namespace or 'default')}/{name}")

    def metadata(self, what: str, selector: str) -> list[Manifest]:
        """Of the objects with these labels, in all namespaces. Raises FleetError."""
        where = self._collection(what).replace("/namespaces/NAMESPACE", "")
        found = self._asked(f"{where}?labelSelector={quote(selector)}", METADATA) or {}
        return [one["metadata"] for one in found.get("items") or ()]

    def _collection(self, what: str) -> str:
        """The path of a kind's objects, with `NAMESPACE` in it where they have one."""
        if what not in self._paths:
            self._paths = self._discovered()
        if what not in self._paths:
            raise FleetError(f"{self._kubeconfig} leads to no {what}")
        return self._paths[what]

    def _discovered(self) -> dict[str, str]:
        """The collections of the server by every name of theirs, with `NAMESPACE` in them where they have one."""
        found = dict[str, str]()
        for root in ("/api", "/apis"):
            for group in (self._asked(root, GROUPS) or {})["items"]:
                named = group["metadata"].get("name", "")
                for version in group["versions"]:
                    base = f"{root}/{named}/{version['version']}" if named else f"{root}/{version['version']}"
                    for kind in version["resources"]:
                        plural = kind["resource"]
                        space = "/namespaces/NAMESPACE" if kind["scope"] == "Namespaced" else ""
                        for word in (plural, kind["singularResource"], *kind.get("shortNames", ())):
                            found.setdefault(word, f"{base}{space}/{plural}")
                            found.setdefault(f"{word}.{named}", f"{base}{space}/{plural}")
        return found

    def _asked(self, path: str, accept: str = "application/json") -> Manifest | None:
        content = self._kubeconfig.read_bytes()
        if content != self._read:
            self._access, self._read = read_kubeconfig(self._kubeconfig), content
        try:
            status, said = once(self._access, "GET", path, accept=accept)
        except (http.client.HTTPException, OSError) as error:
            raise FleetError(f"GET {path} by {self._kubeconfig} failed: {error}") from error
        if status == NOT_FOUND:
            return None
        if status != OK:
            raise FleetError(f"GET {path} by {self._kubeconfig} failed: {status} {said.decode()}")
        return json.loads(said)
