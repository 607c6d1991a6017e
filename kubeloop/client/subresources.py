"""Requests that are not about stored objects: logs, access reviews and Questions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final

import orjson

from kubeloop.client.kube import Kube
from kubeloop.client.wire import Request
from kubeloop.errors import Invalid
from kubeloop.objects import Key, section
from kubeloop.types import ACCESS_REVIEW, POD, SELF_ACCESS_REVIEW, ResourceType

LOG_SILENCE: Final = 24 * 3600.0  # seconds of silence in a followed log, since an idle engine logs nothing
LOG_SECONDS: Final = 60.0  # of silence in any other log


def logs(
    kube: Kube, pod: Key, container: str, *, follow: bool, previous: bool, tail: int | None
) -> AsyncGenerator[bytes | bytearray]:
    """Yield the lines of a container's log; a followed one until the container ends."""
    params = {"container": container} | ({"follow": "true"} if follow else {})
    params |= ({"previous": "true"} if previous else {}) | ({} if tail is None else {"tailLines": str(tail)})
    path = POD.path(pod.namespace, pod.name, "log")
    request = Request("logs", str(POD), "GET", path, params=params, accept="*/*")
    return kube.lines(request, operation=f"logs of pod {pod}", silence=LOG_SILENCE if follow else LOG_SECONDS)


async def may(
    kube: Kube,
    verb: str,
    kind: ResourceType,
    key: Key,
    *,
    subresource: str = "",
    user: Mapping[str, object] | None = None,
) -> bool:
    """True if the operator, or `user` in the form of a SubjectAccessReview, may do this."""
    attributes = {
        "verb": verb,
        "group": kind.group,
        "resource": kind.plural,
        "subresource": subresource,
        "namespace": key.namespace,
        "name": key.name,
    }
    review = SELF_ACCESS_REVIEW if user is None else ACCESS_REVIEW
    body = {
        "apiVersion": review.api_version,
        "kind": review.kind,
        "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}, **(user or {})},
    }
    request = Request("may", str(review), "POST", review.path(), orjson.dumps(body))
    return section(await kube.answer(request, operation=f"may {verb} {kind}"), "status").get("allowed") is True


async def question(kube: Kube, kind: ResourceType, namespace: str, spec: Mapping[str, object]) -> object:
    """Return the operator's answer to a Question, which comes as a refusal; None if there was no refusal."""
    body = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"generateName": "ask-", "namespace": namespace},
        "spec": spec,
    }
    request = Request("question", str(kind), "POST", kind.path(namespace), orjson.dumps(body), params={"dryRun": "All"})
    try:
        await kube.answer(request, operation="ask the operator")
    except Invalid as error:
        match error.details:
            case {"causes": [{"reason": "Answer", "message": str(text)}]}:
                return orjson.loads(text)
            case _:
                raise
    return None
