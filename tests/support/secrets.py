"""Secrets, of words."""

from __future__ import annotations

import base64

from tests.support.manifests import Manifest


def secret_of(namespace: str, name: str, **data: str) -> Manifest:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "data": encoded}
