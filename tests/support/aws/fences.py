"""What AWS would take, and no cluster that the operator makes is to be like: each is refused by a word of EKS."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from moto.iam.models import iam_backends

from tests.support.aws.model import Refusal

CNI_POLICY = "AmazonEKS_CNI_Policy"
CNI_ACCOUNT = "aws-node"


def refuse_two_machines(template: Mapping[str, Any] | None, said: Mapping[str, Any]) -> None:
    """Raise Refusal when a node group and its launch template both say the disk or the machine, or neither does.

    AWS does so, too. `template`: its content; None for a group without one.
    """
    if template is None:
        return
    if "disk_size" in said:
        raise Refusal("InvalidParameterException", "A disk size cannot be specified with a launch template")
    if ("InstanceType" in template) == bool(said.get("instance_types")):
        raise Refusal("InvalidParameterException", "The machine is said once: here, or in the launch template")


def refuse_unfenced_nodes(
    template: Mapping[str, Any] | None, machine_image: str, policies: Collection[str], accounts: Collection[str]
) -> None:
    """Raise Refusal for nodes by which a pod would come to permissions that are not its own.

    `policies`: the ARNs of what the role of the nodes may do. `accounts`: the service accounts with an identity.
    """
    options = (template or {}).get("MetadataOptions", {})
    is_closed = options.get("HttpTokens") == "required" and str(options.get("HttpPutResponseHopLimit")) == "1"
    if "NVIDIA" in machine_image and not is_closed:
        raise Refusal("InvalidParameterException", "Pods on these nodes would reach the metadata service")
    if any(CNI_POLICY in policy for policy in policies):
        raise Refusal("InvalidParameterException", "The role of the nodes would have the permissions of the CNI")
    if CNI_ACCOUNT not in accounts:
        raise Refusal("InvalidParameterException", "The CNI would have no permissions")


def refuse_open_network(addon: str, values: str | None) -> None:
    """Raise Refusal for a CNI that does not enforce NetworkPolicies."""
    if addon == "vpc-cni" and json.loads(values or "{}").get("enableNetworkPolicy") != "true":
        raise Refusal("InvalidParameterException", "NetworkPolicies would not be enforced")


def policies_of(account: str, role: str) -> Collection[str]:
    """Return the ARNs of the policies that are attached to a role, by the ARN of that."""
    roles = iam_backends[account]["aws"].roles.values()
    return [policy for one in roles if one.arn == role for policy in one.managed_policies]
