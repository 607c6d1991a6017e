"""List roles and their policies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from modelplane_operator.clouds.eks.changes import SEPARATOR, UID
from modelplane_operator.clouds.eks.lists.look import ListContext, tags_of
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.identity import AUTOSCALER, ROLES, policy_keys
from modelplane_operator.clouds.resources import ExistingResource


async def roles(context: ListContext) -> list[ExistingResource]:
    """List the roles of a cluster with their policies."""
    return [
        existing for part in await asyncio.gather(*(_list_role(context, key) for key in ROLES)) for existing in part
    ]


async def _list_role(context: ListContext, key: str) -> list[ExistingResource]:
    """List a role and its policies, or nothing if it does not exist."""
    name = context.name_on_cloud(key)
    answer = await context.get("iam", "get_role", RoleName=name)
    if answer is None:
        return []
    item = answer["Role"]
    trust = {"AssumeRolePolicyDocument": _parse_document(item["AssumeRolePolicyDocument"])}
    tags = tags_of(item)
    role = ExistingResource(key, k.ROLE, name, "Ready", tags.get(UID, ""), {"arn": item["Arn"]}, trust)
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


def _to_policy(
    role: ExistingResource, kind: str, name: str, last: str, live: Mapping[str, Any] | None = None
) -> ExistingResource:
    """Return a policy of a role. One that another party attached is deleted only together with the role."""
    key = f"{role.key}-{name}"
    is_own = key in policy_keys(role.key)
    identifier = SEPARATOR.join((role.id, last))
    return ExistingResource(
        key, kind, identifier, "Ready", role.owner if is_own else "", live=live or {}, swept=not is_own
    )


def _parse_document(value: Any) -> Any:
    """Return a document of IAM, which comes as an object or as encoded text."""
    return json.loads(unquote(value)) if isinstance(value, str) else value
