"""At rest nothing is written; what somebody changed is. On a real API server, which fills in and rewrites values."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from kubeloop.client.kube import Kube
from kubeloop.objects import key_of
from kubeloop.ownership import add_content_hash, compute_owned_fields, is_current, owns
from kubeloop.types import type_of
from tests.api.contract import rich
from tests.support.api import Api
from tests.support.manifests import change

Manifest = dict[str, Any]

pytestmark = [pytest.mark.fleet, pytest.mark.server]


def deployment(namespace: str) -> Manifest:
    """A Deployment with all that servers rewrite: quantities, defaults, empty values, defaulted list keys."""
    container = {
        "name": "engine",
        "image": "engine:1",
        "args": ["--model", "m"],
        "env": [{"name": "A", "value": ""}],
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}, "claims": [{"name": "gpu"}]},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    template = {
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
        "volumes": [{"name": "shm", "emptyDir": {}}],
        "hostNetwork": False,
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": namespace, "labels": {"a": "b"}, "annotations": {"note": "1"}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "d"}},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": template},
        },
    }


def service(namespace: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "namespace": namespace},
        "spec": {"selector": {"app": "d"}, "ports": [{"name": "http", "port": 80, "targetPort": 8000}]},
    }


def secret(namespace: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "x", "namespace": namespace, "finalizers": ["modelplane.ai/finalizer"]},
        "data": {"token": "YQ=="},
    }


def claim_template(namespace: str) -> Manifest:
    device = {
        "name": "gpu",
        "exactly": {"deviceClassName": "gpu", "count": 8, "selectors": [{"cel": {"expression": "true"}}]},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "r", "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [device]}}},
    }


def replica(namespace: str) -> Manifest:
    manifest = change(rich()["ModelReplica"], "metadata", {"name": "m", "namespace": namespace})
    return {name: value for name, value in manifest.items() if name != "status"}


def slices(namespace: str) -> Manifest:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "e", "namespace": namespace},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.1"]}],
        "ports": [{"name": "http", "port": 80}],
    }


@pytest.mark.parametrize("build", [deployment, service, secret, claim_template, replica, slices])
async def test_what_was_applied_is_current_for_a_process_that_has_just_begun(
    kube: Kube, namespace: str, build: Any
) -> None:
    wanted = add_content_hash(build(namespace))
    await kube.apply(wanted)
    live = await kube.get(type_of(wanted), key_of(wanted))

    assert is_current(live, compute_owned_fields(live), wanted)
    assert is_current(live, compute_owned_fields(live), add_content_hash(build(namespace))), "rendered again"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.replicas", 2),
        ("spec.template.spec.containers[].image", "engine:2"),
        ("spec.template.spec.containers[].args", ["--model"]),
        ("spec.template.spec.tolerations", []),
        ("metadata.labels", {}),
        ("metadata.annotations.note", "2"),
    ],
)
async def test_another_wish_is_not_current(kube: Kube, namespace: str, path: str, value: Any) -> None:
    live = await kube.apply(add_content_hash(deployment(namespace)))

    assert not is_current(
        live, compute_owned_fields(live), add_content_hash(change(deployment(namespace), path, value))
    )


@pytest.mark.parametrize(
    "command",
    [
        "scale deployment d --replicas=3",
        "set image deployment d engine=other",
        "label deployment d a-",
        "label deployment d a=c --overwrite",
        "annotate deployment d note-",
        "set resources deployment d --limits=cpu=2",
        'patch deployment d --type=json -p [{"op":"remove","path":"/spec/template/spec/tolerations"}]',
        'patch deployment d --type=json -p [{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"x"}]',
        'patch deployment d --type=json -p [{"op":"remove","path":"/spec/template/spec/containers/0/env"}]',
    ],
)
async def test_what_somebody_else_changed_is_not_current_until_it_is_mended(
    api: Api, kube: Kube, namespace: str, command: str
) -> None:
    wanted = add_content_hash(deployment(namespace))
    await kube.apply(wanted)
    await api.kubectl("-n", namespace, *command.split(" "))
    live = await kube.get(type_of(wanted), key_of(wanted))

    assert not is_current(live, compute_owned_fields(live), wanted)
    mended = await kube.apply(wanted)
    assert is_current(mended, compute_owned_fields(mended), wanted)


@pytest.mark.parametrize(
    "command",
    [
        "label deployment d other=1",
        "annotate deployment d other=1",
        "rollout pause deployment d",
        "set env deployment d OTHER=1",
        "scale deployment d --replicas=1",
    ],
)
async def test_what_somebody_else_added_is_theirs(api: Api, kube: Kube, namespace: str, command: str) -> None:
    wanted = add_content_hash(deployment(namespace))
    await kube.apply(wanted)
    await api.kubectl("-n", namespace, *command.split(" "))
    live = await kube.get(type_of(wanted), key_of(wanted))

    assert is_current(live, compute_owned_fields(live), wanted)


OURS = {"data": {"tls.crt": "", "tls.key": "", "ca.crt": ""}}


def certificate(namespace: str, *, named: str = "data") -> Manifest:
    """A Secret as the operator issues it (`data`), and as somebody else writes another key into it."""
    data = dict.fromkeys(("tls.crt", "tls.key", "ca.crt"), "YQ==" if named == "data" else "other")
    metadata = {"name": "c", "namespace": namespace, "labels": {"a": "b"}}
    secret_type = "kubernetes.io/tls"  # noqa: S105
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": secret_type, named: data}


@pytest.mark.parametrize("named", ["data", "stringData"])
@pytest.mark.parametrize(
    "command",
    [
        "replace -f -",
        "replace --force --grace-period=0 -f -",
        "apply -f -",
        "apply --server-side --force-conflicts -f -",
        "apply --server-side --force-conflicts --field-manager=argocd-controller -f -",
    ],
)
async def test_a_secret_that_another_client_replaces_is_no_longer_ours(
    api: Api, kube: Kube, namespace: str, command: str, named: str
) -> None:
    issued = certificate(namespace)
    assert owns(compute_owned_fields(await kube.apply(issued)), OURS)
    other = certificate(namespace, named=named)
    if named == "data":
        other = change(other, "data", {**other["data"], "tls.key": "b3RoZXI="})

    await asyncio.sleep(1)  # servers record the second
    await api.kubectl("-n", namespace, *command.split(" "), stdin=orjson.dumps(other).decode())
    await asyncio.sleep(1)
    live = await kube.get(type_of(issued), key_of(issued))
    assert live["data"]["tls.key"] == "b3RoZXI="
    assert not owns(compute_owned_fields(live), OURS)
    assert owns(compute_owned_fields(await kube.apply(issued)), OURS), "until it is issued again"
