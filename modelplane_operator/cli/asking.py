"""Send one question to the operator with Python's standard library.

The client of the other commands takes longer to import than an answer takes. Errors are ignored here, since the caller
then uses that client, which reports them.
"""

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

SECONDS: Final = 3.0  # seconds; without an operator the command reads the hub itself
MOST: Final = 1024 * 1024  # maximum bytes of a response; API servers accept less from a webhook


def fetch_answer(target: HubTarget, namespace: str, **spec: object) -> Any:
    """Return the operator's answer; None if there is none for any reason."""
    # The standard library's client supports neither a proxy here nor another name in the certificate.
    if target.access.proxy or target.access.server_name:
        return None
    question = {
        "apiVersion": QUESTION.api_version,
        "kind": QUESTION.kind,
        "metadata": {"generateName": "ask-", "namespace": namespace},
        "spec": {name: value for name, value in spec.items() if value is not None},
    }
    try:
        # An admission webhook answers by rejecting the object: the answer is a cause of the 422 response. `dryRun`
        # makes sure that a hub without the webhook stores no object.
        status, body = _post(target.access, f"{QUESTION.path(namespace)}?dryRun=All", json.dumps(question))
        response = json.loads(body) if status == 422 else None
        match response:
            case {"details": {"causes": [{"reason": "Answer", "message": str(text)}]}}:
                return json.loads(text)
            case _:
                return None
    except (OSError, HTTPException, ClientError, ValueError):
        return None


def _post(access: Access, path: str, body: str) -> tuple[int, bytes]:
    """Post a request to the API server. Return the status and the body."""
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
        response = connection.getresponse()
        return response.status, response.read(MOST)
