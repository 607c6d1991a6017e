"""The hub of a local fleet, as tests use it: by kubectl where they write, and with patience."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from localfleet.fleet import Fleet
from tests.support.manifests import ROOT
from tests.support.reader import Reader

Manifest = dict[str, Any]

SYSTEM = "modelplane-system"
POLL_INTERVAL = 0.3


class Hub:
    """The hub; every question is asked again until the answer is right."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._readers = dict[str, Reader]()

    def learn(self) -> None:
        """Have it serve our kinds."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
        self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=180s")

    def kubectl(self, *arguments: str, on: str = "hub", documents: Manifest | None = None) -> str:
        return self.fleet.kubectl(on, *arguments, documents=yaml.safe_dump(documents) if documents else None)

    def apply(self, manifest: Manifest) -> None:
        self.kubectl("apply", "-f-", documents=manifest)

    def secret(self, name: str, kubeconfig: str = "") -> None:
        """The kubeconfig of a cluster of the fleet, or another one, under the cluster's name."""
        content = kubeconfig or self.fleet.kubeconfig(name).read_text()
        metadata = {"name": name, "namespace": SYSTEM}
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"kubeconfig": content}})

    def get(self, what: str, name: str, namespace: str = "", *, on: str = "hub") -> Manifest | None:
        return self._reader(on).get(what, name, namespace)

    def metadata(self, what: str, selector: str, *, on: str = "hub") -> list[Manifest]:
        """Of all objects of a kind that have these labels."""
        return self._reader(on).metadata(what, selector)

    def _reader(self, on: str) -> Reader:
        return self._readers.setdefault(on, Reader(self.fleet.kubeconfig(on)))

    def reason(self, what: str, name: str, condition: str) -> str:
        """What a condition says: `Reason: message`; empty while it says nothing."""
        found = self.get(what, name)
        conditions = ((found or {}).get("status") or {}).get("conditions", [])
        said = next((one for one in conditions if one["type"] == condition), None)
        return ": ".join(filter(None, (said["reason"], said.get("message")))) if said else ""

    def says(self, name: str, condition: str, wanted: str, *, what: str = "ic", seconds: float = 120.0) -> None:
        """Wait until a condition says so, from its beginning."""
        right = f"{condition}: {wanted}"
        self.until(lambda: self.reason(what, name, condition).startswith(wanted), right, seconds=seconds)

    def until(self, true: Callable[[], bool], what: str, *, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                pytest.fail(f"{what}: not within {seconds:.0f} s\n{self.kubectl('get', 'ic,icl,ig', '-oyaml')}")
            time.sleep(POLL_INTERVAL)

    def gone(self, what: str, name: str, namespace: str = "", *, on: str = "hub") -> None:
        """Wait until an object is not there any more."""
        self.until(lambda: self.get(what, name, namespace, on=on) is None, f"{what} {name} to go")
