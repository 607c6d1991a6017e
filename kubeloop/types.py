"""The types of objects, and the paths at which API servers serve them.

Every type that a manifest may have is listed here, or registered by its owner, so that a plan can name it without
asking a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from kubeloop.errors import InvalidName
from kubeloop.objects import Manifest

HUB: Final = ""
"""The name of the cluster on which the operator runs, where a cluster has to be named."""


# Some kinds of Kubernetes allow more (any character but / and %), but none that we read or write needs it.
_NAME: Final = re.compile(r"[-._:a-zA-Z0-9]{1,253}")
_MAX_NAME_SHOWN: Final = 80  # characters of an invalid name that are shown


class ResourceType(NamedTuple):
    """A type of objects: apiVersion, kind and plural."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str = "", name: str | None = None, subresource: str = "") -> str:
        """Return the path of all objects, of those of a namespace, or of one object. Raises InvalidName.

        Names come from users, and an unchecked one could escape from the path: `../../team-b/secrets/key`.
        """
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        if self.namespaced and (namespace or name is not None):
            root += f"/namespaces/{self._path_segment(namespace)}"
        name_segments = () if name is None else (self._path_segment(name),)
        return "/".join(filter(None, (root, self.plural, *name_segments, subresource)))

    def _path_segment(self, name: str) -> str:
        """Return a name as one segment of a path; raises InvalidName."""
        if name in {".", ".."} or not _NAME.fullmatch(name):
            raise InvalidName(f"{name[:_MAX_NAME_SHOWN]!r} cannot be the name or namespace of a {self.kind}")
        return quote(name, safe="")

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


VALIDATING_WEBHOOK: Final = ResourceType(
    "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)
ACCESS_REVIEW: Final = ResourceType(
    "authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
SELF_ACCESS_REVIEW: Final = ResourceType(
    "authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False
)
NAMESPACE: Final = ResourceType("v1", "Namespace", "namespaces", namespaced=False)
CUSTOM_RESOURCE_DEFINITION: Final = ResourceType(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
RESOURCE_QUOTA: Final = ResourceType("v1", "ResourceQuota", "resourcequotas")
LIMIT_RANGE: Final = ResourceType("v1", "LimitRange", "limitranges")
NETWORK_POLICY: Final = ResourceType("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
NODE: Final = ResourceType("v1", "Node", "nodes", namespaced=False)
SERVICE_CIDR: Final = ResourceType("networking.k8s.io/v1", "ServiceCIDR", "servicecidrs", namespaced=False)
POD: Final = ResourceType("v1", "Pod", "pods")
SECRET: Final = ResourceType("v1", "Secret", "secrets")
CONFIG_MAP: Final = ResourceType("v1", "ConfigMap", "configmaps")
SERVICE: Final = ResourceType("v1", "Service", "services")
SERVICE_ACCOUNT: Final = ResourceType("v1", "ServiceAccount", "serviceaccounts")
PERSISTENT_VOLUME_CLAIM: Final = ResourceType("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENT: Final = ResourceType("v1", "Event", "events")
ENDPOINT_SLICE: Final = ResourceType("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
DEPLOYMENT: Final = ResourceType("apps/v1", "Deployment", "deployments")
STATEFUL_SET: Final = ResourceType("apps/v1", "StatefulSet", "statefulsets")
DAEMON_SET: Final = ResourceType("apps/v1", "DaemonSet", "daemonsets")
POD_DISRUPTION_BUDGET: Final = ResourceType("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
POD_MONITOR: Final = ResourceType("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
JOB: Final = ResourceType("batch/v1", "Job", "jobs")
CRON_JOB: Final = ResourceType("batch/v1", "CronJob", "cronjobs")
LEASE: Final = ResourceType("coordination.k8s.io/v1", "Lease", "leases")
ROLE: Final = ResourceType("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING: Final = ResourceType("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
STORAGE_CLASS: Final = ResourceType("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
RESOURCE_CLAIM: Final = ResourceType("resource.k8s.io/v1", "ResourceClaim", "resourceclaims")
RESOURCE_CLAIM_TEMPLATE: Final = ResourceType("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
RESOURCE_SLICE: Final = ResourceType("resource.k8s.io/v1", "ResourceSlice", "resourceslices", namespaced=False)
DEVICE_CLASS: Final = ResourceType("resource.k8s.io/v1", "DeviceClass", "deviceclasses", namespaced=False)
LEADER_WORKER_SET: Final = ResourceType("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets")
GATEWAY_CLASS: Final = ResourceType("gateway.networking.k8s.io/v1", "GatewayClass", "gatewayclasses", namespaced=False)
GATEWAY: Final = ResourceType("gateway.networking.k8s.io/v1", "Gateway", "gateways")
ENVOY_PROXY: Final = ResourceType("gateway.envoyproxy.io/v1alpha1", "EnvoyProxy", "envoyproxies")
CLIENT_TRAFFIC_POLICY: Final = ResourceType(
    "gateway.envoyproxy.io/v1alpha1", "ClientTrafficPolicy", "clienttrafficpolicies"
)
BACKEND_TRAFFIC_POLICY: Final = ResourceType(
    "gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy", "backendtrafficpolicies"
)
POLICIES: Final = (CLIENT_TRAFFIC_POLICY, BACKEND_TRAFFIC_POLICY)
"""The policies for connections of a Gateway of Envoy Gateway."""
BACKEND: Final = ResourceType("gateway.envoyproxy.io/v1alpha1", "Backend", "backends")
ENVOY_EXTENSION_POLICY: Final = ResourceType(
    "gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy", "envoyextensionpolicies"
)
HTTP_ROUTE_FILTER: Final = ResourceType("gateway.envoyproxy.io/v1alpha1", "HTTPRouteFilter", "httproutefilters")
SECURITY_POLICY: Final = ResourceType("gateway.envoyproxy.io/v1alpha1", "SecurityPolicy", "securitypolicies")
MIDDLEWARE: Final = ResourceType("traefik.io/v1alpha1", "Middleware", "middlewares")
INGRESS_ROUTE: Final = ResourceType("traefik.io/v1alpha1", "IngressRoute", "ingressroutes")
SERVERS_TRANSPORT: Final = ResourceType("traefik.io/v1alpha1", "ServersTransport", "serverstransports")
HTTP_ROUTE: Final = ResourceType("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
REFERENCE_GRANT: Final = ResourceType("gateway.networking.k8s.io/v1beta1", "ReferenceGrant", "referencegrants")
BACKEND_TLS_POLICY: Final = ResourceType("gateway.networking.k8s.io/v1", "BackendTLSPolicy", "backendtlspolicies")
VLLM_RUNTIME: Final = ResourceType("production-stack.vllm.ai/v1alpha1", "VLLMRuntime", "vllmruntimes")
INGRESS: Final = ResourceType("networking.k8s.io/v1", "Ingress", "ingresses")
IP_ADDRESS_POOL: Final = ResourceType("metallb.io/v1beta1", "IPAddressPool", "ipaddresspools")
L2_ADVERTISEMENT: Final = ResourceType("metallb.io/v1beta1", "L2Advertisement", "l2advertisements")

TYPES: Final[Mapping[tuple[str, str], ResourceType]] = {
    (known.api_version, known.kind): known
    for known in (
        NAMESPACE,
        CUSTOM_RESOURCE_DEFINITION,
        RESOURCE_QUOTA,
        LIMIT_RANGE,
        NETWORK_POLICY,
        POD_DISRUPTION_BUDGET,
        POD_MONITOR,
        NODE,
        SERVICE_CIDR,
        POD,
        SECRET,
        VALIDATING_WEBHOOK,
        CONFIG_MAP,
        SERVICE,
        SERVICE_ACCOUNT,
        PERSISTENT_VOLUME_CLAIM,
        EVENT,
        ENDPOINT_SLICE,
        DEPLOYMENT,
        STATEFUL_SET,
        DAEMON_SET,
        JOB,
        CRON_JOB,
        LEASE,
        ROLE,
        ROLE_BINDING,
        STORAGE_CLASS,
        RESOURCE_CLAIM,
        RESOURCE_CLAIM_TEMPLATE,
        RESOURCE_SLICE,
        DEVICE_CLASS,
        LEADER_WORKER_SET,
        GATEWAY_CLASS,
        GATEWAY,
        ENVOY_PROXY,
        CLIENT_TRAFFIC_POLICY,
        BACKEND_TRAFFIC_POLICY,
        BACKEND,
        ENVOY_EXTENSION_POLICY,
        HTTP_ROUTE_FILTER,
        SECURITY_POLICY,
        MIDDLEWARE,
        INGRESS_ROUTE,
        SERVERS_TRANSPORT,
        HTTP_ROUTE,
        REFERENCE_GRANT,
        BACKEND_TLS_POLICY,
        VLLM_RUNTIME,
        INGRESS,
        IP_ADDRESS_POOL,
        L2_ADVERTISEMENT,
    )
}
"""The types of Kubernetes and its extensions that are used, by apiVersion and kind."""

_REGISTERED: dict[tuple[str, str], ResourceType] = {**TYPES}


class UnknownTypeError(LookupError):
    """The type of a manifest is neither listed here nor registered."""


def register(*types: ResourceType) -> None:
    """Register the types of an operator's own kinds for `type_of`."""
    _REGISTERED.update({(resource_type.api_version, resource_type.kind): resource_type for resource_type in types})


def type_of(manifest: Manifest) -> ResourceType:
    """Return the type of an object; raises UnknownTypeError."""
    api_version, kind = manifest.get("apiVersion", ""), manifest.get("kind", "")
    try:
        return _REGISTERED[api_version, kind]
    except KeyError:
        raise UnknownTypeError(f"{api_version} {kind} has no row in {__name__}, and is not registered") from None
