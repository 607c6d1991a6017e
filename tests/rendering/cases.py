"""The golden cases, and how each renderer is called for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.rendering.model_replica import CannotRender, Surroundings, render_model_replica
from tests.support.manifests import Manifest

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(GOLDEN.glob("*/*.in.yaml"))


def render(case: Path) -> Sequence[Manifest]:
    """What the renderer of the case's folder makes of the case."""
    documents = [document for document in yaml.safe_load_all(case.read_text()) if document]
    return RENDERERS[case.parent.name](documents)


def _seen(documents: Sequence[Manifest]) -> Manifest:
    return next((document for document in documents if "kind" not in document), {})


def _kind(documents: Sequence[Manifest], *kinds: str) -> list[Manifest]:
    return [document for document in documents if document.get("kind") in kinds]


def _model_replica(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    seen = _seen(documents)
    surroundings = Surroundings(
        namespace_uid=seen["namespaceUid"],
        serves=frozenset(seen["serves"]),
        originals=tuple(_kind(documents, "Secret", "ConfigMap")),
    )
    found = render_model_replica(ModelReplica.parse(documents[0]), surroundings)
    return [{"cause": str(found.cause), "message": found.message}] if isinstance(found, CannotRender) else found


RENDERERS: dict[str, Callable[[Sequence[Manifest]], Sequence[Manifest]]] = {
    "model_replica": _model_replica,
}
