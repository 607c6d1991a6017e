"""EKS: clusters, node groups, addons, access entries, pod identities. What it makes takes its time, by a clock of ours.

A cluster's security group is made in moto's EC2 and deleted with the cluster, if nothing refers to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends

from tests.support.aws.fences import policies_of, refuse_open_network, refuse_two_machines, refuse_unfenced_nodes
from tests.support.aws.model import Refusal
from tests.support.aws.tokens import ADMINISTRATOR
from tests.support.clouds import ApiServer, nowhere

ACCOUNT = "123456789012"
TAKES = {"cluster": 90, "nodegroup": 40, "addon": 20, "update": 20, "deletion": 20}


@dataclass
class Thing:
    """What is being made, is there, or is being deleted."""

    body: dict[str, Any]
    token: str
    ready: datetime
    fails: bool = False
    gone: datetime | None = None
    after: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the body says once the update that is under way is over."""


class Eks:
    def __init__(
        self,
        region: str,
        clock: Callable[[], datetime],
        takes: Mapping[str, float] = TAKES,
        api_server: Callable[[str], ApiServer] = nowhere,
    ) -> None:
        """`api_server`: that of a cluster by its name."""
        self._region, self._clock, self._takes, self._api_server = region, clock, takes, api_server
        self._things: dict[tuple[str, ...], Thing] = {}
        self._numbers = itertools.count(1)
        self.versions = ("1.34", "1.35", "1.36", "1.37", "1.38")
        """Of Kubernetes, that clusters may be of."""
        self.fail_next: set[str] = set()
        """The kinds of which the next is accepted, and then fails."""
        self.takes_unfenced = False
        """Whether clusters may be made as operators before made them: with pods that reach the metadata service, nodes
        with the permissions of the CNI, and NetworkPolicies that nothing enforces."""
        self.issues: dict[str, tuple[str, str]] = {}
        """What is said of those that fail, by kind: code and message."""

    @property
    def left(self) -> list[str]:
        return ["/".join(key) for key in self._alive()]

    # What there may be

    def describe_cluster_versions(self, **_: Any) -> Any:
        known = {"1.31": "UNSUPPORTED", **dict.fromkeys(self.versions, "STANDARD_SUPPORT")}
        return {"clusterVersions": [{"clusterVersion": one, "versionStatus": status} for one, status in known.items()]}

    def list_clusters(self, **_: Any) -> Any:
        return {"clusters": [key[1] for key in self._alive() if key[0] == "cluster"]}

    # Clusters

    def create_cluster(self, name: str, role_arn: str, resources_vpc_config: dict[str, Any], **said: Any) -> Any:
        self._role(role_arn)
        subnets = resources_vpc_config["subnetIds"]
        found = self._ec2.describe_subnets(subnet_ids=subnets)
        if len({one.availability_zone for one in found}) < 2:
            raise Refusal("InvalidParameterException", "Subnets must be in at least two availability zones")
        existing = self._same(("cluster", name), said)
        if existing is None:
            where = self._api_server(name)
            group = self._ec2.create_security_group(
                f"eks-cluster-sg-{name}-{next(self._numbers)}",
                "EKS created security group",
                found[0].vpc_id,
                tags={"aws:eks:cluster-name": name, f"kubernetes.io/cluster/{name}": "owned"},
            )
            body = {
                "name": name,
                "arn": f"arn:aws:eks:{self._region}:{ACCOUNT}:cluster/{name}",
                "createdAt": self._clock(),
                "version": said.get("version", "1.36"),
                "roleArn": role_arn,
                "resourcesVpcConfig": {
                    **resources_vpc_config,
                    "clusterSecurityGroupId": group.id,
                    "vpcId": found[0].vpc_id,
                },
                "endpoint": where.url,
                "certificateAuthority": {"data": where.authority},
                "accessConfig": said.get("access_config"),
                "tags": said.get("tags", {}),
            }
            existing = self._make(("cluster", name), body, said, "cluster")
        return {"cluster": self._shown(existing, "ACTIVE", "FAILED")}

    def describe_cluster(self, name: str) -> Any:
        return {"cluster": self._shown(self._there("cluster", name), "ACTIVE", "FAILED")}

    def delete_cluster(self, name: str) -> Any:
        thing = self._there("cluster", name)
        if any(key[:2] == ("nodegroup", name) for key in self._alive()):
            raise Refusal("ResourceInUseException", "Cluster has nodegroups attached")
        self._end(thing)
        return {"cluster": self._shown(thing, "ACTIVE", "FAILED")}

    def update_cluster_version(self, name: str, version: str, **said: Any) -> Any:
        thing = self._idle("cluster", name)
        before, after = (int(one.split(".")[1]) for one in (thing.body["version"], version))
        if after != before + 1:
            raise Refusal("InvalidParameterException", f"Unsupported Kubernetes minor version update to {version}")
        return self._update(thing, {"version": version}, "VersionUpdate")

    # Node groups

    def create_nodegroup(self, cluster_name: str, nodegroup_name: str, node_role: str, **said: Any) -> Any:
        cluster = self._idle("cluster", cluster_name)
        self._role(node_role)
        with _as("InvalidParameterException"):
            self._ec2.describe_subnets(subnet_ids=said["subnets"])
        template = self._template(said)
        refuse_two_machines(template, said)
        if not self.takes_unfenced:
            accounts = {one.body["serviceAccount"] for key, one in self._alive().items() if key[0] == "identity"}
            refuse_unfenced_nodes(template, said.get("ami_type", ""), policies_of(ACCOUNT, node_role), accounts)
        key = ("nodegroup", cluster_name, nodegroup_name)
        existing = self._same(key, said)
        if existing is None:
            body = {
                "nodegroupName": nodegroup_name,
                "clusterName": cluster_name,
                "createdAt": self._clock(),
                "version": said.get("version", cluster.body["version"]),
                "nodeRole": node_role,
                "scalingConfig": said["scaling_config"],
                "subnets": said["subnets"],
                "labels": said.get("labels", {}),
                "taints": said.get("taints", []),
                "launchTemplate": said.get("launch_template"),
                "amiType": said.get("ami_type"),
                "capacityType": said.get("capacity_type"),
                "instanceTypes": said.get("instance_types"),
                "diskSize": said.get("disk_size"),
                "tags": said.get("tags", {}),
            }
            existing = self._make(key, body, said, "nodegroup")
        return {"nodegroup": self._shown(existing, "ACTIVE", "CREATE_FAILED")}

    def describe_nodegroup(self, cluster_name: str, nodegroup_name: str) -> Any:
        thing = self._there("nodegroup", cluster_name, nodegroup_name)
        return {"nodegroup": self._shown(thing, "ACTIVE", "CREATE_FAILED")}

    def list_nodegroups(self, cluster_name: str, **_: Any) -> Any:
        return {"nodegroups": self._within("nodegroup", cluster_name)}

    def delete_nodegroup(self, cluster_name: str, nodegroup_name: str) -> Any:
        thing = self._there("nodegroup", cluster_name, nodegroup_name)
        if thing.ready > self._clock():
            raise Refusal("ResourceInUseException", "Nodegroup is being created or updated")
        self._end(thing)
        return {"nodegroup": self._shown(thing, "ACTIVE", "CREATE_FAILED")}

    def update_nodegroup_config(self, cluster_name: str, nodegroup_name: str, **said: Any) -> Any:
        thing = self._idle("nodegroup", cluster_name, nodegroup_name)
        after = {"scalingConfig": said["scaling_config"]} if "scaling_config" in said else {}
        if labels := said.get("labels"):
            kept = {k: v for k, v in thing.body["labels"].items() if k not in labels.get("removeLabels", ())}
            after["labels"] = {**kept, **labels.get("addOrUpdateLabels", {})}
        if taints := said.get("taints"):
            kept = [one for one in thing.body["taints"] if one not in taints.get("removeTaints", ())]
            after["taints"] = [*kept, *(one for one in taints.get("addOrUpdateTaints", ()) if one not in kept)]
        return self._update(thing, after, "ConfigUpdate")

    def update_nodegroup_version(self, cluster_name: str, nodegroup_name: str, **said: Any) -> Any:
        thing = self._idle("nodegroup", cluster_name, nodegroup_name)
        template, other = thing.body["launchTemplate"] or {}, said.get("launch_template") or {}
        if other and other.get("id") != template.get("id"):
            raise Refusal("InvalidParameterException", "You cannot specify a different launch template")
        after = {"version": said["version"]} if "version" in said else {}
        return self._update(thing, after, "VersionUpdate")

    def _template(self, said: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return what the template that a node group names says; None where it names none."""
        if "launch_template" not in said:
            return None
        with _as("InvalidParameterException"):
            template = self._ec2.launch_templates[said["launch_template"]["id"]]
        found: Mapping[str, Any] = template.get_version(int(said["launch_template"]["version"])).data
        return found

    # Addons

    def create_addon(self, cluster_name: str, addon_name: str, **said: Any) -> Any:
        self._idle("cluster", cluster_name)
        key = ("addon", cluster_name, addon_name)
        existing = self._same(key, said)
        if existing is None:
            body = {
                "addonName": addon_name,
                "clusterName": cluster_name,
                "createdAt": self._clock(),
                "configurationValues": said.get("configuration_values"),
                "tags": said.get("tags", {}),
            }
            if not self.takes_unfenced:
                refuse_open_network(addon_name, said.get("configuration_values"))
            existing = self._make(key, body, said, "addon")
        return {"addon": self._shown(existing, "ACTIVE", "CREATE_FAILED")}

    def update_addon(self, cluster_name: str, addon_name: str, **said: Any) -> Any:
        thing = self._idle("addon", cluster_name, addon_name)
        return self._update(thing, {"configurationValues": said["configuration_values"]}, "AddonUpdate")

    def describe_addon(self, cluster_name: str, addon_name: str) -> Any:
        return {"addon": self._shown(self._there("addon", cluster_name, addon_name), "ACTIVE", "CREATE_FAILED")}

    def list_addons(self, cluster_name: str, **_: Any) -> Any:
        return {"addons": self._within("addon", cluster_name)}

    # Access

    def create_access_entry(self, cluster_name: str, principal_arn: str, **said: Any) -> Any:
        self._there("cluster", cluster_name)
        key = ("entry", cluster_name, principal_arn)
        existing = self._same(key, said)
        if existing is None:
            body = {"clusterName": cluster_name, "principalArn": principal_arn, "tags": said.get("tags", {})}
            existing = self._make(key, body, said, "")
        return {"accessEntry": existing.body}

    def describe_access_entry(self, cluster_name: str, principal_arn: str) -> Any:
        return {"accessEntry": self._there("entry", cluster_name, principal_arn).body}

    def list_access_entries(self, cluster_name: str, **_: Any) -> Any:
        return {"accessEntries": self._within("entry", cluster_name)}

    def associate_access_policy(self, cluster_name: str, principal_arn: str, policy_arn: str, access_scope: Any) -> Any:
        self._there("entry", cluster_name, principal_arn)
        body = {"policyArn": policy_arn, "accessScope": access_scope}
        thing = self._make(("policy", cluster_name, principal_arn, policy_arn), body, {}, "")
        return {
            "clusterName": cluster_name,
            "principalArn": principal_arn,
            "associatedAccessPolicy": thing.body,
        }

    def list_associated_access_policies(self, cluster_name: str, principal_arn: str, **_: Any) -> Any:
        of = ("policy", cluster_name, principal_arn)
        found = [thing.body for key, thing in self._alive().items() if key[:3] == of]
        return {"clusterName": cluster_name, "principalArn": principal_arn, "associatedAccessPolicies": found}

    def administers(self, cluster_name: str, principal_arn: str) -> bool:
        return ("policy", cluster_name, principal_arn, ADMINISTRATOR) in self._alive()

    # Pod identities

    def create_pod_identity_association(
        self, cluster_name: str, namespace: str, service_account: str, **said: Any
    ) -> Any:
        self._there("cluster", cluster_name)
        self._role(said["role_arn"])
        for key, thing in self._alive().items():
            if key[:2] == ("identity", cluster_name) and thing.body["serviceAccount"] == service_account:
                if thing.token == said.get("client_request_token"):
                    return {"association": thing.body}
                raise Refusal("ResourceInUseException", "Association already exists: a-1")
        number = f"a-{next(self._numbers)}"
        body = {
            "clusterName": cluster_name,
            "namespace": namespace,
            "serviceAccount": service_account,
            "roleArn": said["role_arn"],
            "associationId": number,
            "tags": said.get("tags", {}),
        }
        return {"association": self._make(("identity", cluster_name, number), body, said, "").body}

    def describe_pod_identity_association(self, cluster_name: str, association_id: str) -> Any:
        return {"association": self._there("identity", cluster_name, association_id).body}

    def list_pod_identity_associations(self, cluster_name: str, **_: Any) -> Any:
        self._there("cluster", cluster_name)
        found = [thing.body for key, thing in self._alive().items() if key[:2] == ("identity", cluster_name)]
        shown = ("clusterName", "namespace", "serviceAccount", "associationId")
        return {"associations": [{name: one[name] for name in shown} for one in found]}

    # How all of it goes

    @property
    def _ec2(self) -> Any:
        return ec2_backends[ACCOUNT][self._region]

    def _role(self, arn: str) -> None:
        if not any(one.arn == arn for one in iam_backends[ACCOUNT]["aws"].roles.values()):
            raise Refusal(
                "InvalidParameterException", f"Role with arn: {arn}, could not be assumed because it does not exist"
            )

    def _alive(self) -> Mapping[tuple[str, ...], Thing]:
        """Those that are there now. With a cluster all that is within goes."""
        now = self._clock()
        for key, thing in [*self._things.items()]:
            if thing.gone is not None and thing.gone <= now and key in self._things:
                del self._things[key]
                if key[0] == "cluster":
                    self._things = {other: one for other, one in self._things.items() if other[1] != key[1]}
                    with suppress(Exception):  # it stays when a rule of another names it, as on AWS
                        self._ec2.delete_security_group(
                            group_id=thing.body["resourcesVpcConfig"]["clusterSecurityGroupId"]
                        )
            elif thing.ready <= now and thing.after:
                thing.body |= thing.after
                thing.after = {}
        return self._things

    def _there(self, *key: str) -> Thing:
        thing = self._alive().get(key)
        if thing is None:
            raise Refusal("ResourceNotFoundException", f"No {key[0]} found for name: {key[-1]}.")
        return thing

    def _idle(self, *key: str) -> Thing:
        thing = self._there(*key)
        if thing.gone is not None or thing.ready > self._clock():
            code = "ResourceInUseException" if key[0] == "nodegroup" else "InvalidRequestException"
            raise Refusal(code, f"{key[0]} {key[-1]} is not ACTIVE")
        return thing

    def _within(self, kind: str, cluster: str) -> list[str]:
        self._there("cluster", cluster)
        return [key[2] for key in self._alive() if key[:2] == (kind, cluster)]

    def _same(self, key: tuple[str, ...], said: Mapping[str, Any]) -> Thing | None:
        """What is there already, by the same token."""
        thing = self._alive().get(key)
        if thing is None or (thing.gone is None and thing.token == said.get("client_request_token")):
            return thing
        raise Refusal("ResourceInUseException", f"{key[0]} already exists with name {key[-1]}")

    def _make(self, key: tuple[str, ...], body: dict[str, Any], said: Mapping[str, Any], kind: str) -> Thing:
        ready = self._clock() + timedelta(seconds=self._takes.get(kind, 0))
        fails = kind in self.fail_next
        self.fail_next.discard(kind)
        thing = Thing(body, said.get("client_request_token", ""), ready, fails)
        if fails:
            code, message = self.issues.get(kind, ("Unknown", "it failed"))
            thing.after = {"health": {"issues": [{"code": code, "message": message}]}}
        self._things[key] = thing
        return thing

    def _update(self, thing: Thing, after: dict[str, Any], kind: str) -> Any:
        thing.after, thing.ready = after, self._clock() + timedelta(seconds=self._takes["update"])
        return {"update": {"id": f"u-{next(self._numbers)}", "status": "InProgress", "type": kind}}

    def _end(self, thing: Thing) -> None:
        thing.gone = thing.gone or self._clock() + timedelta(seconds=self._takes["deletion"])

    def _shown(self, thing: Thing, ready: str, failed: str) -> dict[str, Any]:
        if thing.gone is not None:
            status = "DELETING"
        elif thing.ready > self._clock():
            status = "UPDATING" if thing.after and "health" not in thing.after else "CREATING"
        else:
            status = failed if thing.fails else ready
        body = {**thing.body, "status": status}
        if status == "CREATING":
            body = {name: value for name, value in body.items() if name not in ("endpoint", "certificateAuthority")}
        return body


class _as:  # noqa: N801 - read as a word
    """What moto's EC2 refuses is refused by EKS under this name."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            raise Refusal(self._code, str(error)) from error
