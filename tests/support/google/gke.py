"""ClusterManager, as far as the operator uses it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any

from google.cloud.container_v1.types import cluster_service as types

from tests.support.clouds import ApiServer, nowhere
from tests.support.google.state import Refused, State, missing, taken

LINK = "https://container.googleapis.com/v1/"
PATCH = ".3-gke.1000"
COMPUTE_ENGINE = "default"
"""What GKE says is the account of nodes for which none was named."""


class Gke:
    """Each method is a call, by the type of its request."""

    def __init__(self, state: State, api_server: Callable[[str], ApiServer] = nowhere) -> None:
        """`api_server`: that of a cluster by its name."""
        self._state, self._api_server = state, api_server

    @property
    def calls(self) -> Mapping[str, tuple[Any, Any, Callable[[Any], Any]]]:
        return {
            "CreateCluster": (types.CreateClusterRequest, types.Operation, self.create_cluster),
            "CreateNodePool": (types.CreateNodePoolRequest, types.Operation, self.create_node_pool),
            "DeleteCluster": (types.DeleteClusterRequest, types.Operation, self.delete_cluster),
            "DeleteNodePool": (types.DeleteNodePoolRequest, types.Operation, self.delete_node_pool),
            "GetServerConfig": (types.GetServerConfigRequest, types.ServerConfig, self.get_server_config),
            "GetCluster": (types.GetClusterRequest, types.Cluster, self.get_cluster),
            "ListOperations": (types.ListOperationsRequest, types.ListOperationsResponse, self.list_operations),
            "SetNodePoolAutoscaling": (types.SetNodePoolAutoscalingRequest, types.Operation, self.set_autoscaling),
            "UpdateMaster": (types.UpdateMasterRequest, types.Operation, self.update_master),
            "UpdateNodePool": (types.UpdateNodePoolRequest, types.Operation, self.update_node_pool),
        }

    def get_server_config(self, _: Any) -> Any:
        if "container.googleapis.com" not in self._state.services:
            raise Refused("PERMISSION_DENIED", 403, "SERVICE_DISABLED", "The API is disabled")
        channels = types.ReleaseChannel.Channel
        regular = {"channel": channels.REGULAR, "valid_versions": [f"{one}{PATCH}" for one in self._state.versions]}
        rapid = {"channel": channels.RAPID, "valid_versions": [f"1.99{PATCH}"]}
        return types.ServerConfig(channels=[rapid, regular])

    def get_cluster(self, asked: Any) -> Any:
        return self._cluster(asked.name)

    def create_cluster(self, asked: Any) -> Any:
        cluster = types.Cluster(asked.cluster)
        name = f"{asked.parent}/clusters/{cluster.name}"
        if name in self._state.clusters:
            raise taken(name)
        if not re.fullmatch("[a-z]([-a-z0-9]{0,38}[a-z0-9])?", cluster.name):
            raise Refused("INVALID_ARGUMENT", 400, "", f"{cluster.name} is no name")
        if cluster.network not in self._state.networks or cluster.subnetwork not in self._state.subnetworks:
            raise missing(f"{cluster.network}/{cluster.subnetwork}")
        if {"container.googleapis.com", "file.googleapis.com"} - self._state.services:
            raise Refused("PERMISSION_DENIED", 403, "SERVICE_DISABLED", "The API is disabled")
        enforces = cluster.network_config.datapath_provider == types.DatapathProvider.ADVANCED_DATAPATH
        if not (enforces or self._state.takes_unfenced):
            raise Refused("INVALID_ARGUMENT", 400, "", "NetworkPolicies would not be enforced")
        ranges = {"pods", "services"}
        policy = cluster.ip_allocation_policy
        assert {policy.cluster_secondary_range_name, policy.services_secondary_range_name} == ranges
        cluster.current_master_version = f"{cluster.initial_cluster_version}{PATCH}"
        cluster.status = types.Cluster.Status.PROVISIONING
        for pool in cluster.node_pools:
            self._begun(cluster, pool)
        self._state.clusters[name] = cluster
        error = self._state.fail_next.pop("cluster", "")

        def finish() -> None:
            states = types.Cluster.Status
            cluster.status = states.ERROR if error else states.RUNNING
            server = self._api_server(cluster.name)
            cluster.endpoint = server.url.removeprefix("https://")
            cluster.master_auth.cluster_ca_certificate = server.authority
            if error:
                cluster.conditions = [_condition(error)]
            for pool in cluster.node_pools:
                pool.status = types.NodePool.Status.RUNNING
            network = f"https://www.googleapis.com/compute/v1/projects/p/global/networks/{cluster.network}"
            for rule in (f"gke-{cluster.name}-all", "k8s-0123456789abcdef-node-http-hc"):
                self._state.others[f"global/firewalls/{rule}"] = {"name": rule, "network": network}

        return self._operation("CREATE_CLUSTER", name, "cluster", finish, error)

    def create_node_pool(self, asked: Any) -> Any:
        cluster = self._cluster(asked.parent)
        pool = types.NodePool(asked.node_pool)
        if any(one.name == pool.name for one in cluster.node_pools):
            raise taken(pool.name)
        self._may_change(asked.parent)
        self._begun(cluster, pool)
        cluster.node_pools = [*cluster.node_pools, pool]
        error = self._state.fail_next.pop("nodepool", "")

        def finish() -> None:
            made = _pool(cluster, pool.name)
            made.status = types.NodePool.Status.ERROR if error else types.NodePool.Status.RUNNING
            if error:
                made.conditions = [_condition(error)]

        target = f"{asked.parent}/nodePools/{pool.name}"
        return self._operation("CREATE_NODE_POOL", target, "nodepool", finish, error)

    def delete_cluster(self, asked: Any) -> Any:
        cluster = self._cluster(asked.name)
        if self._state.is_busy(asked.name):
            raise _incompatible(asked.name)
        cluster.status = types.Cluster.Status.STOPPING

        def finish() -> None:
            del self._state.clusters[asked.name]
            self._state.others.pop(f"global/firewalls/gke-{cluster.name}-all", None)

        return self._operation("DELETE_CLUSTER", asked.name, "deletion", finish)

    def delete_node_pool(self, asked: Any) -> Any:
        parent, _, name = asked.name.partition("/nodePools/")
        cluster = self._cluster(parent)
        pool = _pool(cluster, name)
        self._may_change(parent)
        pool.status = types.NodePool.Status.STOPPING

        def finish() -> None:
            cluster.node_pools = [one for one in cluster.node_pools if one.name != name]

        return self._operation("DELETE_NODE_POOL", asked.name, "deletion", finish)

    def set_autoscaling(self, asked: Any) -> Any:
        parent, _, name = asked.name.partition("/nodePools/")
        self._cluster(parent)
        self._may_change(parent)
        _pool(self._cluster(parent), name).autoscaling = asked.autoscaling
        return self._operation("UPDATE_CLUSTER", asked.name, "update", lambda: None)

    def update_master(self, asked: Any) -> Any:
        cluster = self._cluster(asked.name)
        self._may_change(asked.name)
        now, then = (int(one.split(".")[1]) for one in (cluster.current_master_version, asked.master_version))
        if then != now + 1:
            raise Refused("INVALID_ARGUMENT", 400, "", f"Master cannot be upgraded to {asked.master_version}")
        cluster.status = types.Cluster.Status.RECONCILING

        def finish() -> None:
            cluster.status = types.Cluster.Status.RUNNING
            cluster.current_master_version = f"{asked.master_version}{PATCH}"

        return self._operation("UPGRADE_MASTER", asked.name, "update", finish)

    def update_node_pool(self, asked: Any) -> Any:
        parent, _, name = asked.name.partition("/nodePools/")
        cluster = self._cluster(parent)
        pool = _pool(cluster, name)
        self._may_change(parent)
        if asked.node_version and asked.node_version not in ("-", cluster.current_master_version):
            raise Refused("INVALID_ARGUMENT", 400, "", "Node version cannot be newer than master's")
        pool.status = types.NodePool.Status.RECONCILING

        def finish() -> None:
            made = _pool(cluster, name)
            made.status = types.NodePool.Status.RUNNING
            if asked.node_version:
                made.version = cluster.current_master_version
            if asked.locations:
                made.locations = [*asked.locations]

        return self._operation("UPGRADE_NODES", asked.name, "update", finish)

    def list_operations(self, asked: Any) -> Any:
        states = types.Operation.Status
        listed = [
            types.Operation(
                name=one.name,
                operation_type=one.kind,
                status=states.DONE if one.done else states.RUNNING,
                target_link=LINK + one.target,
                start_time=one.began.astimezone(UTC).isoformat(),
                error={"message": one.error} if one.done and one.error else None,
            )
            for one in self._state.operations
            if one.target.startswith(asked.parent)
        ]
        return types.ListOperationsResponse(operations=listed)

    def _cluster(self, name: str) -> Any:
        if name not in self._state.clusters:
            raise missing(name)
        return self._state.clusters[name]

    def _may_change(self, name: str) -> None:
        if self._state.is_busy(name) or self._cluster(name).status != types.Cluster.Status.RUNNING:
            raise _incompatible(name)

    def _begun(self, cluster: Any, pool: Any) -> None:
        pool.status = types.NodePool.Status.PROVISIONING
        pool.version = cluster.current_master_version
        if not pool.locations:
            pool.locations = [f"{cluster.location or 'us-central1'}-{zone}" for zone in "abc"]
        assert pool.config.labels["modelplane.ai/pool"]
        account = pool.config.service_account or COMPUTE_ENGINE
        if account not in {COMPUTE_ENGINE, *self._state.act_as}:
            words = f'The user does not have access to service account "{account}"'
            raise Refused("PERMISSION_DENIED", 403, "", words)
        pool.config.service_account = account
        hidden = pool.config.workload_metadata_config.mode == types.WorkloadMetadataConfig.Mode.GKE_METADATA
        if hidden and not cluster.workload_identity_config.workload_pool:
            raise Refused("INVALID_ARGUMENT", 400, "", "GKE_METADATA needs a workload pool of the cluster")
        if not (hidden or self._state.takes_unfenced):
            raise Refused("INVALID_ARGUMENT", 400, "", "Pods would get the tokens of nodes")

    def _operation(self, kind: str, target: str, takes: str, finish: Callable[[], None], error: str = "") -> Any:
        begun = self._state.begin(kind, target, takes, finish, error)
        return types.Operation(name=begun.name, operation_type=kind, status=types.Operation.Status.RUNNING)


def _pool(cluster: Any, name: str) -> Any:
    for one in cluster.node_pools:
        if one.name == name:
            return one
    raise missing(name)


def _condition(words: str) -> Any:
    return types.StatusCondition(code=types.StatusCondition.Code.GCE_STOCKOUT, message=words)


def _incompatible(name: str) -> Refused:
    return Refused("FAILED_PRECONDITION", 400, "", f"Cluster is running incompatible operation on {name}")
