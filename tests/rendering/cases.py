"""The golden cases, and how each renderer is called for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from kubeloop.helm.release import Component
from modelplane_operator.api import names
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.api.clusters.gke import GKECluster
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.api.llm_inference import LLMInference
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.api.placement import Claim, EnginePlacement, MemberPlacement, Placement
from modelplane_operator.api.serving_stack import ServingStack
from modelplane_operator.clouds.eks.render import resources
from modelplane_operator.clouds.eks.render.plan import Facts
from modelplane_operator.clouds.gke import render as gke
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.resources import DesiredResource, Ref
from modelplane_operator.clusters.cluster.cluster_gateway import (
    gateway_of,
    render_cluster_gateway,
    render_system_namespace,
)
from modelplane_operator.clusters.stack.render import parts, render_before, render_namespaces
from modelplane_operator.models.cache.render import Hydrator, render_account, render_job, render_token, render_volume
from modelplane_operator.models.deployment.render import render_endpoint, render_replica
from modelplane_operator.models.llm_inference.model_memory import memory_need
from modelplane_operator.models.llm_inference.render import render_in_fleet, render_on_cluster
from modelplane_operator.models.replica.render import CannotRender, Context, render_model_replica
from modelplane_operator.routing.endpoint.backend_url import Backend, InvalidUrl, Reach, parse_url
from modelplane_operator.routing.endpoint.credentials import Header, read_credentials
from modelplane_operator.routing.endpoint.render import requested_name
from modelplane_operator.routing.gateway import traefik
from modelplane_operator.routing.gateway.gateway_relay import render_relay
from modelplane_operator.routing.gateway.render import hub_gateway, render_inference_gateway
from modelplane_operator.routing.gateway.render.software import gateway_parts, render_addresses
from modelplane_operator.routing.service.render import render_model_service
from modelplane_operator.routing.service.weights import Target, select_endpoints, weigh_endpoints
from tests.support.manifests import Manifest

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(GOLDEN.glob("*/*.in.yaml"))


def render(case: Path) -> Sequence[Manifest]:
    """Return the objects that the renderer of the case's folder makes from its documents."""
    documents = [document for document in yaml.safe_load_all(case.read_text()) if document]
    return RENDERERS[case.parent.name](documents)


def _seen(documents: Sequence[Manifest]) -> Manifest:
    """Return the document without a kind: the arguments that are not objects."""
    return next((document for document in documents if "kind" not in document), {})


def _kind(documents: Sequence[Manifest], *kinds: str) -> list[Manifest]:
    return [document for document in documents if document.get("kind") in kinds]


def _model_replica(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    seen = _seen(documents)
    context = Context(
        namespace_uid=seen["namespaceUid"],
        serves=frozenset(seen["serves"]),
        referenced=tuple(_kind(documents, "Secret", "ConfigMap")),
        isolation=Isolation.model_validate(seen.get("isolation", {})),
    )
    found = render_model_replica(ModelReplica.parse(documents[0]), context)
    return [{"cause": str(found.cause), "message": found.message}] if isinstance(found, CannotRender) else found


def _model_cache(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    cache, seen = ModelCache.parse(documents[0]), _seen(documents)
    volume = names.cache_volume(*cache.key)
    hydrator = Hydrator("registry.example.com/modelplane-operator:v1", "https://mirror.example.com")
    return [
        render_volume(cache, volume, seen["storageClass"], 20, seen.get("staged", "")),
        *([render_token(cache, {"HF_TOKEN": seen["token"]})] if "token" in seen else []),
        *render_account(cache),
        render_job(cache, volume, hydrator, attempt=1),
    ]


def _model_deployment(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    deployment = ModelDeployment.parse(documents[0])
    given = _seen(documents)["placements"]
    placements = [_placement(one) for one in given]
    clusters = {one["metadata"]["name"]: InferenceCluster.parse(one) for one in _kind(documents, "InferenceCluster")}
    cache = next(map(ModelCache.parse, _kind(documents, "ModelCache")), None)
    return [
        *(render_replica(deployment, placement, clusters.get(placement.cluster), cache) for placement in placements),
        *(render_endpoint(deployment, each, one["gateway"]) for each, one in zip(placements, given, strict=True)),
    ]


def _placement(given: Manifest) -> Placement:
    """Return the scheduler's placement from an entry of the case's `placements`."""

    def member(one: Manifest) -> MemberPlacement:
        claims = (Claim(**{**claim, "selectors": tuple(claim["selectors"])}) for claim in one["claims"])
        return MemberPlacement(one["role"], one["pool"], 1, tuple(claims))

    engines = (EnginePlacement(one["name"], tuple(map(member, one["members"]))) for one in given["engines"])
    return Placement(given["cluster"], given["index"], tuple(engines))


def _model_endpoint(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    endpoint = ModelEndpoint.parse(documents[0])
    backend = parse_url(endpoint.spec.url, Reach(allowed=tuple(_seen(documents).get("allowed", ()))))
    if isinstance(backend, InvalidUrl):
        return [{"fault": str(backend.fault), "message": backend.message}]
    return traefik.render_endpoint(endpoint, backend)


def _model_service(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    service = ModelService.parse(documents[0])
    endpoints = [ModelEndpoint.parse(document) for document in _kind(documents, "ModelEndpoint")]
    unusable = _seen(documents).get("unusable", ())
    secrets = {secret["metadata"]["name"]: secret for secret in _kind(documents, "Secret")}
    targets = {each.key: _target(each, secrets) for each in endpoints if each.key.name not in unusable}
    gateway = next(map(InferenceGateway.parse, _kind(documents, "InferenceGateway")), None)
    return render_model_service(
        service, weigh_endpoints(service, select_endpoints(service, endpoints), targets), hub_gateway(gateway)
    )


def _target(endpoint: ModelEndpoint, secrets: Mapping[str, Manifest]) -> Target:
    backend, credentials = parse_url(endpoint.spec.url), endpoint.spec.credentials
    assert isinstance(backend, Backend)
    if credentials is None:
        return Target(backend, path=endpoint.spec.rewrite_path, name=requested_name(endpoint.spec.hostname, backend))
    header = read_credentials(credentials, secrets[credentials.secret_ref.name])
    assert isinstance(header, Header)
    return Target(backend, header, endpoint.spec.rewrite_path, requested_name(endpoint.spec.hostname, backend))


def _llm_inference(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    inference = LLMInference.parse(documents[0])
    if inference.spec.placement == "Cluster":
        return render_on_cluster(inference, token=_seen(documents).get("token", False))
    need = memory_need(inference)
    assert need is not None
    return render_in_fleet(inference, need.per_gpu)


def _inference_gateway(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    gateway = InferenceGateway.parse(documents[0])
    return [*map(_chart, gateway_parts(gateway)), *render_addresses(gateway), *render_inference_gateway(gateway)]


def _cluster_gateway(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    owner = documents[0]
    if owner["kind"] == "InferenceCluster":
        cluster = InferenceCluster.parse(owner)
        asked = {"https": False, "http": True, **_seen(documents)}
        gateway = render_cluster_gateway(cluster, gateway_of(cluster), https=asked["https"], http=asked["http"])
        return [render_system_namespace(cluster), *gateway]
    stack = ServingStack.parse(owner)
    return render_cluster_gateway(stack, stack.spec.gateway)


def _serving_stack(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    stack = ServingStack.parse(documents[0])
    return [*render_namespaces(stack), *render_before(stack), *(_chart(part) for part in parts(stack))]


def _chart(part: Component) -> Manifest:
    """A chart as Helm is asked for it."""
    release = part.release
    asked = {"part": part.name, "after": [*part.after], "release": str(release.key), "chart": release.chart}
    archive = {"archive": release.archive} if release.archive else {}
    return {**asked, "repository": release.repository, "version": release.version, **archive, "values": release.values}


def _gateway_relay(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    return render_relay(InferenceCluster.parse(documents[0]), _seen(documents)["address"])


def _eks_cluster(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    seen = _seen(documents)
    facts = Facts(tuple(seen["zones"]), seen["principal"], seen.get("cards", {}))
    return _cloud_resources(lambda: resources(EKSCluster.parse(documents[0]), facts))


def _gke_cluster(documents: Sequence[Manifest]) -> Sequence[Manifest]:
    seen = _seen(documents)
    facts = gke.Facts(seen["project"], seen.get("versions", {}))
    return _cloud_resources(lambda: gke.resources(GKECluster.parse(documents[0]), facts))


def _cloud_resources(render: Callable[[], Sequence[DesiredResource]]) -> Sequence[Manifest]:
    try:
        found = render()
    except CannotMake as error:
        return [{"problem": str(error)}]
    return [
        {
            "key": one.key,
            "kind": one.kind,
            **({"needs": [*one.needs]} if one.needs else {}),
            **({"kept": sorted(one.updatable)} if one.updatable else {}),
            "parameters": _legible(one.parameters),
        }
        for one in found
    ]


def _legible(value: object) -> object:
    match value:
        case Ref(key, output):
            return f"${{{key}.{output}}}"
        case dict():
            return {name: _legible(part) for name, part in value.items()}
        case list() | tuple():
            return [_legible(part) for part in value]
        case _:
            return value


RENDERERS: dict[str, Callable[[Sequence[Manifest]], Sequence[Manifest]]] = {
    "model_cache": _model_cache,
    "cluster_gateway": _cluster_gateway,
    "eks_cluster": _eks_cluster,
    "gateway_relay": _gateway_relay,
    "gke_cluster": _gke_cluster,
    "inference_gateway": _inference_gateway,
    "llm_inference": _llm_inference,
    "model_deployment": _model_deployment,
    "model_endpoint": _model_endpoint,
    "model_replica": _model_replica,
    "model_service": _model_service,
    "serving_stack": _serving_stack,
}
