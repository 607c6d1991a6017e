"""List roles and their policies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from modelplane_operator.clouds.eks.changes import SEPARATOR, UID
from modelplane_operator.clouds.eks.lists.look import Look, tags_of
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.identity import AUTOSCALER, ROLES, attached_to
from modelplane_operator.clouds.resources import Found


async def roles(look: Look) -> list[Found]:
    """List the roles of a cluster with their policies."""
    return [existing for part in await asyncio.gather(*(_list_role(look, key) for key in ROLES)) for existing in part]


async def _list_role(context: Look, key: str) -> list[Found]:
    """List a role and its policies, or nothing if it does not exist."""
    name = context.named(key)
    answer = await context.one("iam", "get_role", RoleName=name)
    if answer is None:
        return []
    item = answer["Role"]
    trust = {"AssumeRolePolicyDocument": _parse_document(item["AssumeRolePolicyDocument"])}
    tags = tags_of(item)
    role = Found(key, k.ROLE, name, "Ready", tags.get(UID, ""), {"arn": item["Arn"]}, trust)
    resources = [role]
    if role.owner != context.owner.uid:
        return resources
    for policy_item in await context.all("iam", "list_attached_role_policies", "AttachedPolicies", RoleName=name):
        resources.append(_to_policy(role, k.ROLE_POLICY, policy_item["PolicyName"], policy_item["PolicyArn"]))
    for policy in await context.all("iam", "list_role_policies", "PolicyNames", RoleName=name):
        live: dict[str, Any] = {}
        if policy == AUTOSCALER:
            document = await context.session.call("iam", "get_role_policy", {"RoleName": name, "PolicyName": policy})
            live["PolicyDocument"] = _parse_document(document["PolicyDocument"])
        resources.append(_to_policy(role, k.INLINE_POLICY, policy, policy, live))
    return resources


def _to_policy(role: Found, kind: str, name: str, last: str, live: Mapping[str, Any] | None = None) -> Found:
    """Return a policy of a role. One that another party attached is deleted only together with the role."""
    key = f"{role.key}-{name}"
    is_own = key in attached_to(role.key)
    identifier = SEPARATOR.join((role.id, last))
    return Found(key, kind, identifier, "Ready", role.owner if is_own else "", live=live or {}, swept=not is_own)


def _parse_document(value: Any) -> Any:
    """Return a document of IAM, which comes as an object or as encoded text."""
    return json.loads(unquote(value)) if isinstance(value, str) else value
