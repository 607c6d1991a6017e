"""Bringing a cluster: whether it can be, and all objects for it, made from what is there."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import typer
import yaml

from kubeloop.client.access import write_kubeconfig
from kubeloop.client.kube import Kube
from kubeloop.client.subresources import may
from kubeloop.errors import AlreadyExists, NotFound
from kubeloop.objects import Key, Manifest, entries, section
from kubeloop.resource import of
from kubeloop.types import (
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    DEVICE_CLASS,
    NODE,
    RESOURCE_SLICE,
    SERVICE,
    ResourceType,
)
from kubeloop.words import counted, listed
from modelplane_operator.api import InferenceClass, InferenceCluster, labels, names
from modelplane_operator.ask.answers.discovery import Pool, discovered
from modelplane_operator.cli.hub import ask
from modelplane_operator.cli.options import Candidate, Context, Kubeconfig, Output, hub
from modelplane_operator.cli.output import Exit, Format, No, console, structured, table, text
from modelplane_operator.clusters.stack.beside import holder
from modelplane_operator.clusters.stack.charts import STACK, StackChart

ACCOUNT: Final = Key("modelplane-access", "modelplane-operator")
"""Which the manifests of examples/access/ make."""
TOKEN_SECONDS: Final = 24 * 3600
OLDEST: Final = (1, 34)
STORAGE_CLASS: Final = ResourceType("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
CLUSTER_ROLE: Final = ResourceType("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", namespaced=False)
DRIVER_CONTAINER: Final = "nvidia.com/gpu.deploy.driver"
"""A label of nodes: NVIDIA's GPU operator runs the driver in a container, with its files elsewhere."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a workload cluster needs, or has."""

    check: str
    ok: bool
    says: str
    remedy: str


def check(context: Candidate = None, kubeconfig: Kubeconfig = None, output: Output = Format.TABLE) -> None:
    """Whether a cluster can become a workload cluster, and what is missing: that of --context, and not the hub."""
    findings = ask(hub(kubeconfig, context), _findings)
    good = all(one.ok for one in findings)
    if output.is_structured:
        structured("Check", findings, output)
    else:
        rows = [(one.check, one.ok, one.says, one.remedy) for one in findings]
        console().print(table(("CHECK", "OK", "FOUND", "WHAT TO DO"), rows))
    raise typer.Exit(Exit.YES if good else Exit.NO)


async def _findings(kube: Kube) -> Sequence[Finding]:
    version = await kube.version()
    found = [judged_version(version)]
    if "ResourceSlice" not in await kube.serves(RESOURCE_SLICE.api_version):
        remedy = "switch on resource.k8s.io/v1 in its API server"
        return [*found, Finding("device API", ok=False, says="resource.k8s.io/v1 is not served", remedy=remedy)]
    pools, nodes = await _hardware(kube)
    found.append(judged_devices(pools))
    roots = [
        one["metadata"]["name"] for one in nodes if section(one, "metadata", "labels").get(DRIVER_CONTAINER) == "true"
    ]
    if roots:
        remedy = "write nvidiaDriverRoot: /run/nvidia/driver into a ServingStack of the cluster: docs/serving-stack.md"
        found.append(Finding("driver root", ok=True, says=f"in a container on {listed(roots)}", remedy=remedy))
    found += await _software(kube)
    found.append(judged_services((await kube.list(SERVICE)).items))
    classes = (await kube.list(STORAGE_CLASS)).items
    remedy = "" if classes else "make one whose volumes several pods may write, where models are to have caches"
    found.append(
        Finding("storage", ok=True, says=counted(len(classes), "storage class", "storage classes"), remedy=remedy)
    )
    allowed = await may(kube, "create", CLUSTER_ROLE, Key("", ""))
    remedy = "" if allowed else "have an administrator apply examples/access/with-helm.yaml there"
    found.append(
        Finding("permission", ok=allowed, says="you may give access" if allowed else "you may not", remedy=remedy)
    )
    return found


def judged_version(version: str) -> Finding:
    numbers = version.lstrip("v").split(".")[:2]
    new = all(one.isdigit() for one in numbers) and tuple(map(int, numbers)) >= OLDEST
    remedy = "" if new else f"upgrade it to {OLDEST[0]}.{OLDEST[1]} or later"
    return Finding("Kubernetes", ok=new, says=version, remedy=remedy)


async def _software(kube: Kube) -> Sequence[Finding]:
    async with asyncio.TaskGroup() as group:
        definitions = group.create_task(kube.list(CUSTOM_RESOURCE_DEFINITION, bare=True))
        classes = group.create_task(kube.list(DEVICE_CLASS, bare=True))
        deployments = group.create_task(kube.list(DEPLOYMENT))
    there = (*definitions.result().items, *classes.result().items)
    return [judged_part(one, there, deployments.result().items) for one in STACK]


def judged_part(chart: StackChart, definitions: Sequence[Manifest], deployments: Sequence[Manifest]) -> Finding:
    """What becomes of a part of the serving stack on a cluster, where the operator has a Helm."""
    whose = holder(chart.marker, chart.release, definitions, deployments)
    ask = f"to have the stack's beside it, name {chart.name} in spec.stack of the InferenceCluster"
    drop = f"uninstall it, or turn {chart.name} off in spec.stack of the InferenceCluster"
    match whose:
        case None if chart.default:
            says, remedy = "is not there", "none: a ServingStack installs it"
        case None:
            says, remedy = "is not there, and no other part needs it", ""
        case "":
            says, remedy = "a ServingStack has installed it", ""
        case _ if chart.yields or not chart.default:
            says, remedy = f"is there from {whose}: a ServingStack leaves it alone and installs none", ask
        case _:
            says, remedy = f"is there from {whose}: the one that a ServingStack installs conflicts with it", drop
    return Finding(chart.name, ok=True, says=says, remedy=remedy)


def judged_devices(pools: Sequence[Pool]) -> Finding:
    said = "; ".join(f"{counted(len(one.nodes), 'node')} with {one.description}" for one in pools)
    remedy = "" if pools else "none where a ServingStack installs the DRA driver; else install one"
    return Finding("devices", ok=True, says=said or "no driver has published any", remedy=remedy)


def judged_services(services: Sequence[Manifest]) -> Finding:
    """Whether load balancers get addresses, as far as there are any."""
    asking = [one for one in services if section(one, "spec").get("type") == "LoadBalancer"]
    without = [one["metadata"]["name"] for one in asking if not entries(one, "status", "loadBalancer", "ingress")]
    if without:
        remedy = "install what gives addresses to load balancers, MetalLB for one"
        return Finding("load balancers", ok=False, says=f"no address for {listed(without)}", remedy=remedy)
    said = f"{len(asking)} with an address" if asking else "none yet, so that nobody knows"
    return Finding(
        "load balancers", ok=True, says=said, remedy="" if asking else "make a Service of type LoadBalancer to see"
    )


async def _hardware(kube: Kube) -> tuple[tuple[Pool, ...], Sequence[Manifest]]:
    async with asyncio.TaskGroup() as group:
        nodes = group.create_task(kube.list(NODE))
        slices = group.create_task(kube.list(RESOURCE_SLICE))
        classes = group.create_task(kube.list(DEVICE_CLASS))
    known = [one["metadata"]["name"] for one in classes.result().items]
    return discovered(nodes.result().items, slices.result().items, known), nodes.result().items


def register(
    name: Annotated[str, typer.Argument(help="What the InferenceCluster is to be called.", metavar="NAME")],
    from_context: Annotated[str, typer.Option("--from-context", help="The context of that cluster.")],
    server: Annotated[
        str | None, typer.Option("--server", help="Its address as the hub reaches it; otherwise the context's.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the objects but the Secret; write nothing.")
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Bring a cluster: label its nodes, and make its Secret, InferenceClasses and InferenceCluster on the hub."""
    there, out = hub(kubeconfig, from_context), console()
    pools, _ = ask(there, _hardware)
    if not pools:
        raise No(
            f"no DRA driver has published devices on the cluster of {from_context}: install one, or write its "
            "InferenceClass by hand: docs/clusters.md"
        )
    objects = manifests(name, pools)
    if dry_run:
        if output is Format.JSON:
            sys.stdout.write(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2) + "\n")
        else:
            sys.stdout.write("---\n".join(yaml.safe_dump(one, sort_keys=False) for one in objects))
        return

    async def prepared(kube: Kube) -> str:
        token, authority = await _credentials(kube, from_context)
        for pool in pools:
            for node in pool.unlabelled:
                labelled = {"name": node, "labels": {labels.POOL: pool.name}}
                await kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": labelled}, force=False)
        access = replace(there.access, server=server or there.access.server, authority=authority, token=token)
        return write_kubeconfig(replace(access, certificate="", key="", token_file=None, verify=True))

    text_ = ask(there, prepared)
    ask(hub(kubeconfig, context), lambda kube: _written(kube, name, text_, objects))
    if output.is_structured:
        joined = tuple(Joined(one.name, one.description, tuple(one.nodes)) for one in pools)
        structured("Register", Registration(name, joined), output)
        return
    for pool in pools:
        out.print(text(f"pool {pool.name}: {counted(len(pool.nodes), 'node')} with {pool.description}"))
    out.print("", f"{text(name)} is registered. See how far it is: modelplane fleet -w")


@dataclass(frozen=True, slots=True)
class Joined:
    """A pool of nodes that came with a cluster."""

    pool: str
    description: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Registration:
    """The document of a cluster that was registered."""

    cluster: str
    pools: tuple[Joined, ...]


def manifests(name: str, pools: Sequence[Pool]) -> Sequence[Manifest]:
    """The classes, and the cluster that names them."""
    existing = {"secretRef": {"name": f"{name}-kubeconfig"}, "credentialRenewal": "TokenRequest"}
    cluster: dict[str, Any] = {
        "apiVersion": InferenceCluster.definition.api_version,
        "kind": InferenceCluster.definition.kind,
        "metadata": {"name": name},
        "spec": {
            "cluster": {"source": "Existing", "existing": existing},
            "nodePools": [one.in_cluster() for one in pools],
        },
    }
    return (*(one.inference_class() for one in pools), cluster)


async def _credentials(kube: Kube, context: str) -> tuple[str, str]:
    """A token of the operator's account there, and who signs the API server's certificate."""
    try:
        token = await kube.request_token(ACCOUNT, TOKEN_SECONDS)
        bundle = await kube.get(CONFIG_MAP, Key(ACCOUNT.namespace, "kube-root-ca.crt"))
    except NotFound:
        raise No(
            f"the operator has no account there: kubectl --context {context} apply -f examples/access/with-helm.yaml "
            "(docs/permissions.md says which of the two manifests to take)"
        ) from None
    return token, str(section(bundle, "data").get("ca.crt") or "")


async def _written(kube: Kube, name: str, kubeconfig: str, objects: Sequence[Manifest]) -> None:
    """The Secret first; classes that are there already are left as they are."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{name}-kubeconfig", "namespace": names.SYSTEM_NAMESPACE},
        "data": {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()},
    }
    if await kube.find(of(InferenceCluster), Key("", name)) is not None:
        raise No(f"there is an InferenceCluster {name} already: delete it, or choose another name")
    await kube.apply(secret)
    for one in objects:
        try:
            await kube.create(one)
        except AlreadyExists:
            if one["kind"] != InferenceClass.definition.kind:
                raise
