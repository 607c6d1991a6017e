"""One question to the operator, by Python's own library: the client that the other commands have takes longer to load
than an answer takes. What goes wrong here is left for that client to tell."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

from kubeloop.client.access import Access
from kubeloop.errors import ClientError
from modelplane_operator.ask.answers.documents import QUESTION
from modelplane_operator.cli.kubeconfig import HubTarget

SECONDS: Final = 3.0  # without an operator the command then reads the hub itself
MOST: Final = 1024 * 1024  # bytes of an answer; API servers take less from a webhook


def answered(target: HubTarget, namespace: str, **spec: object) -> Any:
    """What the operator answers; None where it does not, whyever."""
    if target.access.proxy or target.access.server_name:
        return None
    question = {
        "apiVersion": QUESTION.api_version,
        "kind": QUESTION.kind,
        "metadata": {"generateName": "ask-", "namespace": namespace},
        "spec": {name: one for name, one in spec.items() if one is not None},
    }
    try:
        status, said = _posted(target.access, f"{QUESTION.path(namespace)}?dryRun=All", json.dumps(question))
        found = json.loads(said) if status == 422 else None
        match found:
            case {"details": {"causes": [{"reason": "Answer", "message": str(text)}]}}:
                return json.loads(text)
            case _:
                return None
    except (OSError, HTTPException, ClientError, ValueError):
        return None


def _posted(access: Access, path: str, body: str) -> tuple[int, bytes]:
    server = urlsplit(access.server)
    host, port = server.hostname or "", server.port
    token = access.token_file.read_text().strip() if access.token_file else access.token
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    with closing(
        HTTPSConnection(host, port, timeout=SECONDS, context=access.tls())
        if server.scheme == "https"
        else HTTPConnection(host, port, timeout=SECONDS)
    ) as connection:
        connection.request("POST", f"{server.path}{path}", body.encode(), headers)
        answer = connection.getresponse()
        return answer.status, answer.read(MOST)
