"""Whose a cluster's token is: what EKS's own authenticator does with it, for API servers of a local fleet.

A token is a question to STS, signed for one cluster and not sent. Its signature is checked with the secret of the key
that it names, and whoever that is has the permissions that the cluster's access entries give.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

PREFIX = "k8s-aws-v1."
LASTS = timedelta(minutes=15)
ADMINISTRATOR = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"


def signer(token: str, cluster: str, now: datetime, secrets: Mapping[str, str]) -> str:
    """The key by which it was signed for that cluster; empty when it was not, or long ago."""
    try:
        encoded = token.removeprefix(PREFIX)
        url = urlsplit(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
        asked = dict(parse_qsl(url.query, keep_blank_values=True, strict_parsing=True))
        given, made = asked.pop("X-Amz-Signature"), asked["X-Amz-Date"]
        key, _, region, service, _ = asked["X-Amz-Credential"].split("/")
        at = datetime.strptime(made, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        secret = secrets[key]
    except (ValueError, KeyError):
        return ""
    if url.hostname != f"sts.{region}.amazonaws.com" or asked.get("Action") != "GetCallerIdentity":
        return ""
    if asked["X-Amz-SignedHeaders"] != "host;x-k8s-aws-id" or not timedelta() <= now - at <= LASTS:
        return ""
    request = AWSRequest("GET", f"https://{url.hostname}/", headers={"x-k8s-aws-id": cluster}, params=asked)
    request.context["timestamp"] = made
    auth = SigV4QueryAuth(Credentials(key, secret), service, region)
    expected = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return key if token.startswith(PREFIX) and hmac.compare_digest(given, expected) else ""


def reviewed(review: Mapping[str, Any], who: Callable[[str], tuple[str, bool]]) -> Mapping[str, Any]:
    """The answer to a TokenReview. `who`: the principal of a token, empty for nobody, and whether it administers."""
    principal, administers = who(review["spec"]["token"])
    status: dict[str, Any] = {"authenticated": bool(principal)}
    if principal:
        status["user"] = {"username": principal, "groups": ["system:masters"] if administers else []}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}
