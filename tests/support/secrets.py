"""Secrets, of words."""

from __future__ import annotations

import base64

from tests.support.manifests import Manifest


def signing_secret(until: str = "", key: str = "of the operator") -> Manifest:
    """What paths of the key service are signed by; `until`: until when others are answered."""
    made = secret_of("modelplane-system", "modelplane-gateway-key-paths", **{"tls.crt": "", "tls.key": key})
    annotations = {"annotations": {"modelplane.ai/unsigned-until": until}} if until else {}
    return {**made, "type": "kubernetes.io/tls", "metadata": {**made["metadata"], **annotations}}


def secret_of(namespace: str, name: str, **data: str) -> Manifest:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "data": encoded}
