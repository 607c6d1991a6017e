"""What is said of an object as it is written: which is refused, and what would come of the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubeloop.client.certificates import secret_data
from kubeloop.verdict import MOST, NOTHING, Verdict
from modelplane_operator.api import (
    InferenceClass,
    InferenceCluster,
    LLMInference,
    ModelDeployment,
    ModelEndpoint,
    ModelService,
    labels,
    names,
)
from modelplane_operator.ask.admission.rules import (
    certificates,
    inference_class,
    inference_cluster,
    llm_inference,
    model_cache,
    model_deployment,
    model_endpoint,
    model_service,
)
from modelplane_operator.ask.admission.rules.configuration import find_differences
from modelplane_operator.models.deployment.plan import plan
from modelplane_operator.models.llm_inference.model_memory import memory_need
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.routing.service.selection import Neighbours
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.requirement import NoCache
from tests.support.builders import (
    NAMESPACE,
    cluster,
    deployment,
    engine,
    gpu,
    pool,
    replica,
    request,
    taint,
)
from tests.support.builders import (
    model_cache as a_cache,
)
from tests.support.manifests import change
from tests.support.observed import placed, seen

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]

TYPING_ERROR = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi") >= 0'
INVALID = "Invalid nodeSelector CEL expression: engine main, Standalone, request gpu: "


def served(*arguments: str, image: str = "vllm/vllm-openai") -> Manifest:
    """An engine with these arguments."""
    found = engine()
    container = {"name": "engine", "image": image, "args": list(arguments)}
    found["members"][0] = {**found["members"][0], "template": {"spec": {"containers": [container]}}}
    return found


def judged(
    new: ModelDeployment, *clusters: InferenceCluster, old: ModelDeployment | None = None, **more: Any
) -> Verdict:
    return model_deployment.check(seen(new, *clusters, **more), old)


# Deployments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        (TYPING_ERROR, "1:51: the ( is never closed"),
        ('device.attribute["x"].y == 1', "1:8: a device has no attribute; it has allowMultipleAllocations, attributes"),
    ],
)
def test_a_selector_that_does_not_compile_is_refused_with_its_place(selector: str, why: str) -> None:
    found = judged(deployment(engine(request(selector))), cluster("a"))
    assert len(found.refusals) == 1
    assert found.refusals[0].startswith(f"{INVALID}{why}")


def test_a_selector_that_was_stored_is_not_refused_for_what_else_changes() -> None:
    stored = deployment(engine(request(TYPING_ERROR)), replicas=1)
    found = judged(deployment(engine(request(TYPING_ERROR)), replicas=2), cluster("a"), old=stored)
    assert found.refusals == ()
    assert any(INVALID in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("window", "why"),
    [
        ({"schedule": "0 25 * * *", "duration": "1h"}, "the schedule '0 25 * * *' is not one of cron: bad hour"),
        (
            {"schedule": "0 2 * * *", "duration": "1h", "timeZone": "Berlin"},
            "there is no time zone Berlin: use a name such as Europe/Berlin",
        ),
    ],
)
def test_a_maintenance_window_that_cannot_be_read_is_refused_where_it_is_new(window: Manifest, why: str) -> None:
    new = ModelDeployment.parse(change(deployment().to_manifest(), "spec.maintenance", [window]))
    on = InferenceCluster.parse(change(cluster("a").to_manifest(), "spec.maintenance", [window]))

    assert judged(new, cluster("a")).refusals == (f"spec.maintenance[0]: {why}",)
    assert inference_cluster.judge(on, None, {}, None).refusals == (f"spec.maintenance[0]: {why}",)
    assert judged(new, cluster("a"), old=new).refusals == ()
    assert inference_cluster.judge(on, on, {}, None).refusals == ()


def test_a_port_that_nobody_would_ask_is_refused_and_an_old_one_is_not() -> None:
    new = deployment(served("--port=9000"))
    assert judged(new, cluster("a")).refusals == (
        "Engine main listens on --port 9000 but is probed on 8000: remove the flag",
    )
    more = deployment(served("--port=9000"), replicas=2)
    assert judged(more, cluster("a"), cluster("b"), old=new).refusals == ()


def test_an_engine_that_listens_elsewhere_unless_it_is_told_is_warned_of() -> None:
    found = judged(deployment(served(image="lmsysorg/sglang")), cluster("a"))
    assert found.refusals == ()
    assert [warning.partition(",")[0] for warning in found.warnings] == ["Engine main is SGLang"]


def test_what_can_be_placed_is_told_in_a_dry_run_alone() -> None:
    found = judged(deployment(replicas=2), cluster("berlin"), cluster("oslo"))
    assert found.messages(dry_run=False) == ()
    (told,) = found.messages(dry_run=True)
    assert told == "Decided now: 2 of 2 replicas placed on 2 clusters; placed on berlin/default, oslo/default"


def test_what_cannot_be_placed_is_warned_of_in_the_words_of_the_condition() -> None:
    new = deployment(replicas=3)
    fleet = (cluster("berlin", nodes=1), cluster("oslo", nodes=1), cluster("iowa", pool("l4", gpu("23Gi"))))
    (told,) = judged(new, *fleet).messages(dry_run=False)

    status = plan(seen(new, *fleet)).status
    assert status is not None
    condition = next(one for one in status.conditions if one.type == "ReplicasScheduled")
    assert told == f"Decided now: {condition.message}; placed on berlin/default, oslo/default"
    assert "iowa: engine main: pool l4: request gpu" in told or "2 with too few free nodes" in told


def test_a_cache_that_does_not_exist_is_warned_of() -> None:
    (told,) = judged(deployment(cache="qwen"), cluster("a"), cache=NoCache.NOT_FOUND).warnings
    assert "ModelCache qwen not found" in told


def test_an_edit_that_stops_the_only_replica_says_so() -> None:
    old, new = deployment(replicas=1), deployment(served("--max-model-len=4096"), replicas=1)
    full = cluster("a", nodes=1)
    found = judged(new, full, old=old, replicas=placed(old, full))

    assert found.warnings[1].startswith("The fleet has no room for a second replica: the only one stops before")


def test_an_edit_that_rolls_replicas_says_how_many() -> None:
    old = deployment(replicas=1)
    running = placed(old, cluster("a", nodes=3))
    new = deployment(served("--max-model-len=4096"), replicas=1)
    found = judged(new, cluster("a", nodes=3), old=old, replicas=running)
    assert found.warnings == (
        f"1 running replica would get changed pods, and restart in turn: {running[0]['metadata']['name']}",
    )


def test_a_deployment_that_says_the_same_again_is_not_warned_of() -> None:
    same = deployment(replicas=9)
    found = judged(same, cluster("a"), old=same)
    assert found.messages(dry_run=False) == ()
    assert found.messages(dry_run=True) != ()


def test_scaling_down_says_which_replicas_go() -> None:
    old = deployment(replicas=2)
    fleet = (cluster("a"), cluster("b"))
    running = placed(old, *fleet)
    (told,) = judged(deployment(replicas=1), *fleet, old=old, replicas=running).warnings
    assert told.startswith("1 running replica would be removed; ")
    assert told.endswith(" on b: 1 replica requested")


# The other kinds ------------------------------------------------------------------------------------------------------


def a_class(size: str = "80Gi", **attributes: Any) -> InferenceClass:
    device = {**gpu(size), "attributes": attributes}
    return InferenceClass.parse({"metadata": {"name": "h100"}, "spec": {"devices": [device]}})


def test_a_device_that_cannot_be_read_is_refused_once() -> None:
    wrong = a_class("80 gigabytes")
    (why,) = inference_class.judge(wrong, None, {}).refusals
    assert why.startswith("Device gpu: capacity memory: ")
    assert inference_class.judge(wrong, wrong, {}).refusals == ()
    other = a_class("80 gigabytes", architecture={"string": "Hopper"})
    assert inference_class.judge(other, wrong, {"berlin": 2}).refusals == ()


def test_other_devices_of_a_class_in_use_are_warned_of() -> None:
    (told,) = inference_class.judge(a_class("40Gi"), a_class("80Gi"), {"oslo": 2, "berlin": 1}).warnings
    assert told.startswith("3 nodes of 2 clusters would have these devices at once: berlin, oslo")
    assert inference_class.judge(a_class("40Gi"), a_class("80Gi"), {}) == NOTHING


def endpoint(url: str) -> ModelEndpoint:
    return ModelEndpoint.parse({"metadata": {"name": "e", "namespace": NAMESPACE}, "spec": {"url": url}})


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1", "https://169.254.169.254", "https://10.1.2.3", "https://a:b@c.com"]
)
def test_an_endpoint_that_leads_inside_is_refused(url: str) -> None:
    reach = Reach().of_users((), ())
    assert len(model_endpoint.judge(endpoint(url), None, reach).refusals) == 1
    assert model_endpoint.judge(endpoint(url), endpoint(url), reach) == NOTHING
    assert model_endpoint.judge(endpoint("https://api.openai.com/v1"), None, reach) == NOTHING


def test_a_service_that_selects_nothing_is_warned_of() -> None:
    entry = {"name": "all", "selector": {"matchLabels": {"model": "qwen"}}}
    service = ModelService.parse({"metadata": {"name": "s", "namespace": NAMESPACE}, "spec": {"endpoints": [entry]}})
    (told,) = model_service.judge(service, None, Neighbours()).warnings
    assert told.startswith("No ModelEndpoints matched the configured selectors (model=qwen)")
    assert model_service.judge(service, service, Neighbours()) == NOTHING
    assert model_service.judge(service, None, None) == NOTHING


def test_a_cache_that_no_cluster_would_keep_is_warned_of() -> None:
    (told,) = model_cache.judge(a_cache(region="eu"), None, [{"region": "us"}]).warnings
    assert told == "The model would be staged nowhere: none of 1 InferenceCluster has the labels region=eu"
    assert model_cache.judge(a_cache(region="eu"), None, [{"region": "eu"}]) == NOTHING


def own(*pools: Manifest, source: str = "Existing") -> InferenceCluster:
    spec = {"cluster": {"source": source}, "nodePools": list(pools)}
    return InferenceCluster.parse({"metadata": {"name": "berlin"}, "spec": spec})


def nodes(count: int, **more: Any) -> Manifest:
    return {"name": "default", "className": "h100", "nodeCount": count, **more}


def test_a_pool_of_a_class_that_is_not_there_is_warned_of() -> None:
    (told,) = inference_cluster.judge(own(nodes(1)), None, {"a100": None}, None).warnings
    assert told == "Pool default takes no replica until there is an InferenceClass h100"
    assert inference_cluster.judge(own(nodes(1)), own(nodes(1)), {"a100": None}, None).warnings == ()


def test_a_pool_that_shrinks_below_what_runs_there_is_warned_of() -> None:
    fleet = FleetModel()
    fleet.observe_cluster(cluster("berlin", nodes=2))
    for index in range(2):
        fleet.observe_replica(replica("berlin", index=index))
    info = fleet.info("berlin")

    (less,) = inference_cluster.judge(own(nodes(1)), own(nodes(2)), {"h100": None}, info).warnings
    assert less.startswith("Pool default would have 1 node, and replicas take 2: ")
    other = {**nodes(2), "name": "other"}
    (gone,) = inference_cluster.judge(own(other), own(nodes(2)), {"h100": None}, info).warnings
    assert gone.startswith("Pool default would be gone, and replicas take 2: ")
    assert inference_cluster.judge(own(nodes(3)), own(nodes(2)), {"h100": None}, info).warnings == ()


def test_a_pool_that_would_never_wake_is_warned_of() -> None:
    asleep = nodes(1, minNodeCount=0, maxNodeCount=4)
    told, _costs = inference_cluster.judge(own(asleep, source="EKS"), None, {"h100": None}, None).warnings
    assert told.startswith("Pool default may shrink to no node, and the autoscaler of EKS")
    (_costs,) = inference_cluster.judge(own(asleep, source="GKE"), None, {"h100": None}, None).warnings
    assert "shrink" not in _costs


def on_cloud(**provisioning: Any) -> dict[str, InferenceClass | None]:
    manifest = a_class().to_manifest()
    spec = {**manifest["spec"], "provisioning": provisioning}
    return {"h100": InferenceClass.parse({**manifest, "spec": spec})}


H100 = {"type": "nvidia-h100-80gb", "count": 8}
P5 = on_cloud(provider="EKS", eks={"instanceType": "p5.48xlarge", "accelerator": H100})


def test_a_cluster_that_a_cloud_is_to_create_says_what_it_costs() -> None:
    (told,) = inference_cluster.judge(own(nodes(2), source="EKS"), None, P5, None).warnings
    assert told == (
        "Cluster berlin is created on EKS now and costs money until this InferenceCluster is deleted: its control "
        "plane, network and system nodes, and pool default: 2 nodes of p5.48xlarge, each with 8 nvidia-h100-80gb"
    )
    other = on_cloud(provider="GKE", gke={"machineType": "a3-highgpu-8g", "accelerator": H100})
    scaled = nodes(1, minNodeCount=1, maxNodeCount=4)
    (told,) = inference_cluster.judge(own(scaled, source="GKE"), None, other, None).warnings
    assert told.endswith("pool default: 1 to 4 nodes of a3-highgpu-8g, each with 8 nvidia-h100-80gb")


def test_an_edit_says_which_nodes_it_adds_and_nothing_of_those_that_there_are() -> None:
    before = own(nodes(2), source="EKS")
    assert inference_cluster.judge(own(nodes(1), source="EKS"), before, P5, None).warnings == ()
    assert inference_cluster.judge(before, before, P5, None).warnings == ()
    (told,) = inference_cluster.judge(own(nodes(3), source="EKS"), before, P5, None).warnings
    assert told.startswith("More nodes are created on EKS now and cost money while they exist: pool default: 3 nodes")


@pytest.mark.parametrize("source", ["AKS", "Nebius", "Vultr"])
def test_a_cloud_that_is_not_provisioned_says_so_and_what_to_do(source: str) -> None:
    (told,) = inference_cluster.judge(own(nodes(2), source=source), None, P5, None).warnings
    assert told.startswith(f"Clusters on {source} are not created by this operator yet, so cluster berlin will not")
    assert told.endswith("modelplane register")
    assert inference_cluster.judge(own(nodes(3), source=source), own(nodes(2), source=source), P5, None) == NOTHING


def test_a_taint_that_moves_replicas_is_told_by_the_deployment_that_is_tried() -> None:
    tainted = cluster("a", taints=[taint("maintenance")])
    (told,) = judged(deployment(), tainted).warnings
    assert "taint maintenance:NoSchedule is not tolerated (remove the taint, or tolerate it)" in told


def test_no_more_is_told_than_a_person_reads() -> None:
    many = Verdict(warnings=tuple(f"warning {number}" for number in range(MOST + 2)))
    assert many.messages(dry_run=False)[MOST:] == ("2 more warnings",)


# Certificates ---------------------------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAME = "operator.example"


def rotated(secrets: list[Manifest], now: datetime) -> list[Manifest]:
    """The Secrets once the leader has done what is to be done."""
    found = certificates.rotation(secrets, NAME, now)
    gone = {one.secret.name for one in found.drop}
    left = [one for one in secrets if one["metadata"]["name"] not in gone]
    if found.make is None:
        return left
    metadata = {**found.make.metadata, "uid": found.make.metadata["name"]}
    return [*left, {"metadata": metadata, "data": secret_data(found.make.certificate, None)}]


def test_over_a_year_whatever_is_shown_has_been_trusted_for_a_day_and_is_valid() -> None:
    secrets = rotated([], NOW)
    trusted_since: dict[int, datetime] = {}
    shown: list[int] = []
    for day in range(400):
        now = NOW + timedelta(days=day)
        there = certificates.read_certificates(secrets)
        current = certificates.in_use(there, now)
        assert current is not None
        assert now < current.made + certificates.VALID
        if current.number > 1:
            assert now - trusted_since[current.number] >= timedelta(days=1)
        shown.append(current.number)
        assert len(there) <= 2
        secrets = rotated(secrets, now)
        for one in certificates.read_certificates(secrets):
            trusted_since.setdefault(one.number, now)
    assert shown == sorted(shown)
    assert shown[-1] >= 6


def test_what_is_no_certificate_is_passed_over() -> None:
    (good,) = rotated([], NOW)
    bad = {"metadata": {**good["metadata"], "name": "modelplane-admission-certificate-7"}, "data": {"tls.crt": "eA=="}}
    other = {"metadata": {"name": "kubeconfig", "annotations": {labels.MADE: "now"}}, "data": {}}
    assert [one.number for one in certificates.read_certificates([other, bad, good])] == [1]
    late = NOW + certificates.REPLACED
    made = certificates.rotation([bad, good], NAME, late).make
    assert made is not None
    assert made.metadata["name"] == "modelplane-admission-certificate-8"


def test_a_configuration_is_written_only_when_it_trusts_others_or_asks_elsewhere() -> None:
    there = certificates.read_certificates(rotated([], NOW))
    trusted, path = certificates.bundle(there), there[0].path
    service = {"name": "operator", "namespace": "modelplane-system"}
    hooks = [{"name": "a", "clientConfig": {"url": "https://a/b"}}, {"name": "b", "clientConfig": {"service": service}}]
    changed = certificates.read_client_authorities({"metadata": {"name": "x"}, "webhooks": hooks}, there, NOW)
    assert changed is not None
    assert [one["clientConfig"] for one in changed["webhooks"]] == [
        {"url": f"https://a{path}", "caBundle": trusted},
        {"service": {**service, "path": path}, "caBundle": trusted},
    ]
    assert certificates.read_client_authorities(changed, there, NOW) is None
    assert certificates.read_client_authorities({"metadata": {"name": "x"}, "webhooks": hooks}, [], NOW) is None


def test_where_the_webhook_is_asked_changes_with_what_is_shown() -> None:
    """So that whoever shows it has long known the path."""
    first = rotated([], NOW)
    both = rotated(first, NOW + certificates.REPLACED)
    configuration = {"metadata": {"name": "x"}, "webhooks": [{"name": "a", "clientConfig": {"url": "https://a/"}}]}
    older, newer = certificates.read_certificates(both)
    for waited, path in ((timedelta(), older.path), (certificates.USED_AFTER, newer.path)):
        asked = certificates.read_client_authorities(
            configuration, certificates.read_certificates(both), NOW + certificates.REPLACED + waited
        )
        assert asked is not None
        assert asked["webhooks"][0]["clientConfig"]["url"] == f"https://a{path}"
    assert older.path != newer.path


GROUPS = {"modelplane.ai", "inference.devopstoolkit.ai"}
SERVICE = {"name": "modelplane-operator-admission", "namespace": "modelplane-system"}


def hook(name: str, *rules: tuple[str, str], failing: str = "Ignore", **client: object) -> Manifest:
    asked = [{"apiGroups": [group], "resources": [resource]} for group, resource in rules]
    config = client or {"service": SERVICE}
    return {"name": name, "clientConfig": config, "failurePolicy": failing, "rules": asked}


@pytest.mark.parametrize(
    ("hooks", "told"),
    [
        ([hook("a", ("modelplane.ai", "modelcaches"), ("inference.devopstoolkit.ai", "llminferences"))], ()),
        ([hook("q", ("modelplane.ai", "questions"), failing="Fail")], ()),
        ([], ()),
        ([hook("a", ("*", "*/*"))], ("webhook a also receives objects of *",)),
        ([hook("a", ("", "secrets"))], ("webhook a also receives objects of the core group",)),
        ([hook("a", url="https://thief.example.com/")], ("webhook a calls thief.example.com",)),
        (
            [hook("a", service={**SERVICE, "namespace": "thief"})],
            ("webhook a calls modelplane-operator-admission.thief.svc",),
        ),
        (
            [hook("a", ("modelplane.ai", "modelcaches"), failing="Fail")],
            ("webhook a blocks writes while the operator does not answer",),
        ),
    ],
)
def test_what_the_chart_has_not_said_in_the_webhooks_configuration_is_told(
    hooks: list[Manifest], told: tuple[str, ...]
) -> None:
    assert find_differences({"webhooks": hooks}, GROUPS, names.ADMISSION_SERVICE) == told


def test_of_an_llm_inference_is_told_what_its_gpus_need_and_what_would_come_of_its_deployment() -> None:
    said = Verdict(warnings=("Decided now: 0 of 1 replica placed",), forecast=("Would be placed",))
    written = LLMInference.parse(
        {
            "metadata": {"name": "small", "namespace": NAMESPACE},
            "spec": {"model": "acme/small-7B", "gpu": 2, "placement": "Fleet"},
        }
    )

    told = llm_inference.judge(written, memory_need(written), said)
    assert told.warnings == said.warnings
    needed, *rest = told.forecast
    assert needed.startswith("Model acme/small-7B is taken to have 7 billion parameters")
    assert rest == ["Would be placed"]

    nobody_can_tell = llm_inference.judge(written, None, NOTHING)
    assert nobody_can_tell.warnings[0].endswith("does not follow from its name: set spec.memory")
