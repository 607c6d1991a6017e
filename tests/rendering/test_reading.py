"""What renderers read out of what users wrote: flags, Secrets, addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from kubeloop.objects import Key
from kubeloop.ownership import owner_labels
from modelplane_operator.api.inference_gateway import InferenceGatewaySpec
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.pods import Container, Env
from modelplane_operator.models.replica.render import CopySource, engines_without_kv_transfer, sources, unheard
from modelplane_operator.models.replica.render.arguments import flag_value, is_complete, is_sglang
from modelplane_operator.routing.endpoint.render import rendered_backend
from modelplane_operator.routing.gateway.render import DATA_PLANES, address_of, url_of
from modelplane_operator.routing.service.render import service_url
from tests.rendering.cases import CASES, GOLDEN
from tests.support.manifests import ABSENT, ROOT, Manifest, change, load

FLAGS: list[tuple[list[str], list[str], str | None]] = [
    ([], [], None),
    ([], ["--model=m"], None),
    ([], ["--block-size=32"], "32"),
    ([], ["--block-size", "32"], "32"),
    ([], ["--page-size=8", "--block-size=32"], "32"),
    ([], ["--block-size=8", "--block-size", "32"], "32"),
    ([], ["--block_size=32"], "32"),
    ([], ["--block-size"], None),
    ([], ["--block-size="], ""),
    ([], ["--block-size-of-something=1"], None),
    (["vllm", "serve", "--block-size", "64"], [], "64"),
    (["sh", "-c", "exec vllm serve m --block-size=64 --port 8001"], [], "64"),
    (["sh", "-c", "exec vllm serve 'my model' \\\n  --page-size 64"], [], "64"),
    (["sh", "-c", "echo don't; vllm serve m --block-size=64"], [], "64"),
    (["sh", "-c", "vllm serve m --block-size 64; sleep 1"], [], "64"),
    (["bash", "-lc", "vllm serve m --block-size 64&& echo done"], [], "64"),
    (["/bin/bash", "-e", "-c"], ["ray start --head --block-size=1\nvllm serve m --block-size=64 > log"], "64"),
    (["bash", "-c", "vllm serve m --block-size=64; ray start --block-size=1"], [], "64"),
    (["bash", "-c", "ray start --block-size=1 && exec ./engine --block-size=64"], [], "64"),
    (["tini", "--", "sh", "-c", "vllm serve m --block-size=64"], [], "64"),
    (["bash", "run.sh", "--block-size=64"], [], "64"),
    ([], ["--block-size 64"], None),
    ([], ["--block-size=$(SIZE)"], "48"),
    (["sh", "-c", "vllm serve m --block-size=${SIZE}"], [], "48"),
    (["sh", "-c", "vllm serve m --block-size $OTHER"], [], "$OTHER"),
]


@pytest.mark.parametrize(("command", "args", "value"), FLAGS)
def test_flag_is_found_wherever_it_is_written(command: list[str], args: list[str], value: str | None) -> None:
    env = (Env(name="SIZE", value="48"),)
    container = Container(name="engine", image="i", command=tuple(command), args=tuple(args), env=env)

    assert flag_value(container, "--block-size", "--page-size") == value


@pytest.mark.parametrize(
    ("image", "command", "args", "said"),
    [
        ("lmsysorg/sglang:v0.5", [], [], True),
        ("registry:5000/sglang-runtime@sha256:1f", [], [], True),
        ("i", ["python3", "-m", "sglang.launch_server", "--model-path=m"], [], True),
        ("i", ["sglang"], ["serve", "m"], True),
        ("i", ["/opt/venv/bin/sglang", "serve"], [], True),
        ("i", ["tini", "--", "python3", "-m", "sglang.launch_server"], [], True),
        ("i", ["sh", "-c", "cd /w && exec python3 -m sglang.launch_server --model-path m"], [], True),
        ("mirror/sglang/vllm-openai:v0.11", [], [], False),
        ("vllm/vllm-openai:no-sglang", [], [], False),
        ("vllm/vllm-openai", ["vllm", "serve", "team/sglang-tuned"], [], False),
        ("vllm/vllm-openai", [], ["--served-model-name", "sglang"], False),
        ("vllm/vllm-openai", ["vllm", "serve", "sglang"], [], False),
        ("acme/engine:sglang-0.5", [], [], True),
        ("i", ["numactl", "--interleave=all", "python3", "-m", "sglang.launch_server"], [], True),
        ("i", ["python3", "/sgl-workspace/sglang/python/sglang/launch_server.py"], [], True),
    ],
)
def test_sglang_is_told_by_its_image_and_its_program(
    image: str, command: list[str], args: list[str], *, said: bool
) -> None:
    container = Container(name="engine", image=image, command=tuple(command), args=tuple(args))

    assert is_sglang(container) is said


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exec vllm serve m --port=8001", True),
        ("exec vllm serve m --port=$PORT", True),
        ("echo $HOME; vllm serve m --port=8001", True),
        ("exec vllm serve m --port=$OTHER", False),
        ("exec vllm serve m --port=8001 $KV_FLAGS", False),
        ('exec vllm serve m "$@"', False),
        ("exec vllm serve m $(cat flags)", False),
        ("exec vllm serve m `cat flags`", False),
    ],
)
def test_a_variable_may_stand_for_any_flag(script: str, *, said: bool) -> None:
    env = (Env(name="PORT", value="8001"), Env(name="KV_FLAGS", value="--kv-transfer-config={}"))
    container = Container(name="engine", image="i", command=("sh", "-c", script), env=env)

    assert is_complete(container) is said


def replica(*engines: Manifest) -> ModelReplica:
    spec = {"clusterName": "c", "engines": engines}
    return ModelReplica.parse({"metadata": {"name": "r", "namespace": "n", "uid": "u"}, "spec": spec})


def engine(name: str, *env: Manifest, pull: tuple[str, ...] = ()) -> Manifest:
    pod = {
        "containers": [{"name": "engine", "image": "i", "env": env}],
        "imagePullSecrets": [{"name": p} for p in pull],
    }
    return {"name": name, "members": [{"nodePoolName": "p", "template": {"spec": pod}}]}


def secret(name: str, key: str, **more: object) -> Manifest:
    return {"name": f"FROM_{key}", "valueFrom": {"secretKeyRef": {"name": name, "key": key, **more}}}


def config(name: str, key: str, **more: object) -> Manifest:
    return {"name": f"FROM_{key}", "valueFrom": {"configMapKeyRef": {"name": name, "key": key, **more}}}


def test_sources_are_named_once_with_all_the_keys_that_are_read() -> None:
    found = sources(
        replica(
            engine("a", secret("hf", "token", optional=True), config("hf", "tuning", optional=True), pull=("hf",)),
            engine("b", secret("hf", "user"), secret("other", "token"), pull=("hf",)),
        )
    )

    assert found == (
        CopySource("ConfigMap", "hf", frozenset({"tuning"}), required=False),
        CopySource("PullSecret", "hf"),
        CopySource("Secret", "hf", frozenset({"token", "user"}), required=True, needed=frozenset({"user"})),
        CopySource("Secret", "other", frozenset({"token"}), needed=frozenset({"token"})),
    )


def test_a_replica_that_names_nothing_has_no_sources() -> None:
    assert sources(replica(engine("a", {"name": "PLAIN", "value": "1"}))) == ()


def test_only_a_stored_object_owns_children() -> None:
    unstored = ModelReplica.parse(change(replica(engine("a")).to_manifest(), "metadata.uid", ABSENT))

    with pytest.raises(ValueError, match="never stored"):
        owner_labels(unstored)


def test_a_service_that_says_nothing_leads_nowhere_known() -> None:
    assert rendered_backend({"metadata": {"name": "s"}}) is None
    assert rendered_backend({"metadata": {"name": "s", "annotations": {"modelplane.ai/backend": "nonsense"}}}) is None


def test_there_is_a_data_plane_for_every_backend_of_the_api() -> None:
    assert DATA_PLANES.keys() == set(get_args(InferenceGatewaySpec.model_fields["backend"].annotation))


@pytest.mark.parametrize(
    ("status", "address"),
    [
        ({}, None),
        ({"addresses": []}, None),
        ({"addresses": [{"type": "IPAddress", "value": "10.0.0.1"}, {"value": "10.0.0.2"}]}, "10.0.0.1"),
        ({"addresses": [{"type": "Hostname", "value": "lb.example.com"}]}, "lb.example.com"),
    ],
)
def test_address_of_a_gateway_is_its_first(status: Manifest, address: str | None) -> None:
    assert address_of({"status": status}) == address


@pytest.mark.parametrize(
    ("address", "url"),
    [("10.0.0.1", "http://10.0.0.1"), ("2001:db8::1", "http://[2001:db8::1]"), ("lb.example", "http://lb.example")],
)
def test_url_of_a_gateway(address: str, url: str) -> None:
    assert url_of(address) == url


def test_url_of_a_service_has_no_slash_at_its_end() -> None:
    assert service_url(Key("ml-team", "qwen"), "http://10.0.0.1") == "http://10.0.0.1/ml-team/qwen"


def test_every_expected_output_has_its_input() -> None:
    outputs = {path.with_name(path.name.replace(".out.", ".in.")) for path in GOLDEN.glob("*/*.out.yaml")}

    assert outputs == set[Path](CASES)


@pytest.mark.parametrize("told", ["192.0.2.1/../../team-b/model?", "a@b", "a b", "x" * 254, "", 7, None, ["192.0.2.1"]])
def test_what_is_no_address_is_passed_over(told: Any) -> None:
    """It would become a part of URLs on the hub."""
    assert address_of({"status": {"addresses": [{"value": told}]}}) is None
    assert address_of({"status": {"addresses": [{"value": told}, {"value": "2001:db8::1"}]}}) == "2001:db8::1"


@pytest.mark.parametrize("told", ["192.0.2.1", "2001:db8::1", "a1b2.elb.example.com", "localhost", "my_lb.example.com"])
def test_addresses_and_names_are(told: str) -> None:
    assert address_of({"status": {"addresses": [{"type": "Hostname", "value": told}]}}) == told


def test_the_example_of_split_engines_hands_over_its_cache_and_listens_where_it_is_asked() -> None:
    [deployment] = load(ROOT / "examples/recipes/prefill-decode.yaml")
    engines = [
        {**engine, "members": [{"nodePoolName": "p", "template": member["template"]} for member in engine["members"]]}
        for engine in deployment["spec"]["template"]["spec"]["engines"]
    ]
    placed = replica(*engines)

    assert engines_without_kv_transfer(placed) == ""
    assert [unheard(one) for one in placed.spec.engines] == ["", ""]
