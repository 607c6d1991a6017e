"""Roles, and what they may do."""

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
    return [found for part in await asyncio.gather(*(_role(look, key) for key in ROLES)) for found in part]


async def _role(look: Look, key: str) -> list[Found]:
    name = look.named(key)
    answer = await look.one("iam", "get_role", RoleName=name)
    if answer is None:
        return []
    item = answer["Role"]
    trust = {"AssumeRolePolicyDocument": _document(item["AssumeRolePolicyDocument"])}
    tags = tags_of(item)
    role = Found(key, k.ROLE, name, "Ready", tags.get(UID, ""), {"arn": item["Arn"]}, trust)
    seen = [role]
    if role.owner != look.owner.uid:
        return seen
    for one in await look.all("iam", "list_attached_role_policies", "AttachedPolicies", RoleName=name):
        seen.append(_policy(role, k.ROLE_POLICY, one["PolicyName"], one["PolicyArn"]))
    for policy in await look.all("iam", "list_role_policies", "PolicyNames", RoleName=name):
        live: dict[str, Any] = {}
        if policy == AUTOSCALER:
            said = await look.session.call("iam", "get_role_policy", {"RoleName": name, "PolicyName": policy})
            live["PolicyDocument"] = _document(said["PolicyDocument"])
        seen.append(_policy(role, k.INLINE_POLICY, policy, policy, live))
    return seen


def _policy(role: Found, kind: str, name: str, last: str, live: Mapping[str, Any] | None = None) -> Found:
    """One that somebody else gave the role stays as long as the role does."""
    key = f"{role.key}-{name}"
    ours = key in attached_to(role.key)
    number = SEPARATOR.join((role.id, last))
    return Found(key, kind, number, "Ready", role.owner if ours else "", live=live or {}, swept=not ours)


def _document(said: Any) -> Any:
    """A document of IAM, which comes as an object or as text."""
    return json.loads(unquote(said)) if isinstance(said, str) else said
