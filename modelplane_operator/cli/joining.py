"""Add an existing cluster: check it, discover its hardware, and create its objects on the hub.

The commands `check` and `register` connect to the candidate with the user's own credentials, and `register` then
writes to the hub. The hardware is derived from the ResourceSlices by `discover_pools`; the serving stack is installed
later, by the operator.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import typer
import yaml

from kubeloop.client.access import write_kubeconfig
from kubeloop.client.kube import Kube
from kubeloop.client.subresources import may
from kubeloop.errors import AlreadyExists, Forbidden, NotFound
from kubeloop.objects import Key, Manifest, entries, labels_of, section
from kubeloop.resource import of
from kubeloop.types import (
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    DEPLOYMENT,
    DEVICE_CLASS,
    NODE,
    RESOURCE_SLICE,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    ResourceType,
)
from kubeloop.words import count_of, list_names
from modelplane_operator.api import InferenceClass, InferenceCluster, labels, names
from modelplane_operator.ask.answers.discovery import Pool, discover_pools
from modelplane_operator.cli.hub import ask
from modelplane_operator.cli.options import Candidate, Context, Kubeconfig, Output, hub
from modelplane_operator.cli.output import Exit, Format, No, console, print_structured, table, text
from modelplane_operator.clusters.stack.beside import holder
from modelplane_operator.clusters.stack.charts import STACK, StackChart

ACCOUNT: Final = Key("modelplane-access", "modelplane-operator")
"""Service account that the manifests in examples/access/ create."""
TOKEN_SECONDS: Final = 24 * 3600
"""Requested lifetime of the first token. The operator renews it afterwards (`credentialRenewal`)."""
OLDEST: Final = (1, 34)
"""Minimum version of Kubernetes: the first with resource.k8s.io/v1, the stable API for devices."""
STORAGE_CLASS: Final = ResourceType("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
CLUSTER_ROLE: Final = ResourceType("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", namespaced=False)
INSTALLS: Final = "a ServingStack installs it"
"""End of a finding about a component that the operator will install."""
DRIVER_CONTAINER: Final = "nvidia.com/gpu.deploy.driver"
"""Label of nodes on which NVIDIA's GPU operator runs the driver in a container, with its files in another directory."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check: a property that a workload cluster needs or has."""

    check: str
    """Name of the check."""
    ok: bool
    """True unless the finding prevents the cluster from becoming a workload cluster."""
    says: str
    """Observed state."""
    remedy: str
    """Instruction; empty if there is nothing to do."""


def check(context: Candidate = None, kubeconfig: Kubeconfig = None, output: Output = Format.TABLE) -> None:
    """Check whether the cluster of --context can become a workload cluster, and print what is missing."""
    findings = ask(hub(kubeconfig, context), _run_checks)
    is_usable = all(finding.ok for finding in findings)
    if output.is_structured:
        print_structured("Check", findings, output)
    else:
        rows = [(finding.check, finding.ok, finding.says, finding.remedy) for finding in findings]
        console().print(table(("CHECK", "OK", "FOUND", "WHAT TO DO"), rows))
    raise typer.Exit(Exit.YES if is_usable else Exit.NO)


async def _run_checks(kube: Kube) -> Sequence[Finding]:
    """Run all checks on a cluster."""
    version = await kube.version()
    findings = [check_version(version)]
    if "ResourceSlice" not in await kube.serves(RESOURCE_SLICE.api_version):
        remedy = "switch on resource.k8s.io/v1 in its API server"
        # Without this API, the lists of the following checks would fail.
        return [*findings, Finding("device API", ok=False, says="resource.k8s.io/v1 is not served", remedy=remedy)]
    pools, nodes = await _discover_hardware(kube)
    findings.append(check_devices(pools))
    roots = [
        node["metadata"]["name"]
        for node in nodes
        if section(node, "metadata", "labels").get(DRIVER_CONTAINER) == "true"
    ]
    if roots:
        remedy = "write nvidiaDriverRoot: /run/nvidia/driver into a ServingStack of the cluster: docs/serving-stack.md"
        findings.append(Finding("driver root", ok=True, says=f"in a container on {list_names(roots)}", remedy=remedy))
    findings += await _check_stack(kube)
    findings.append(check_services((await kube.list(SERVICE)).items))
    classes = (await kube.list(STORAGE_CLASS)).items
    remedy = "" if classes else "for model caches, create one with ReadWriteMany volumes"
    findings.append(
        Finding("storage", ok=True, says=count_of(len(classes), "storage class", "storage classes"), remedy=remedy)
    )
    allowed = await may(kube, "create", CLUSTER_ROLE, Key("", ""))
    remedy = "" if allowed else "have an administrator apply examples/access/with-helm.yaml there"
    findings.append(
        Finding(
            "permission",
            ok=allowed,
            says="you may create its access objects" if allowed else "you may not create its access objects",
            remedy=remedy,
        )
    )
    return findings


def check_version(version: str) -> Finding:
    """Check the version of Kubernetes."""
    numbers = version.lstrip("v").split(".")[:2]
    is_new_enough = all(number.isdigit() for number in numbers) and tuple(map(int, numbers)) >= OLDEST
    remedy = "" if is_new_enough else f"upgrade it to {OLDEST[0]}.{OLDEST[1]} or later"
    return Finding("Kubernetes", ok=is_new_enough, says=version, remedy=remedy)


async def _check_stack(kube: Kube) -> Sequence[Finding]:
    """Check the components of the serving stack, and whether the operator's account may install them."""
    async with asyncio.TaskGroup() as group:
        definitions = group.create_task(kube.list(CUSTOM_RESOURCE_DEFINITION, bare=True))
        classes = group.create_task(kube.list(DEVICE_CLASS, bare=True))
        deployments = group.create_task(kube.list(DEPLOYMENT))
    existing = (*definitions.result().items, *classes.result().items)
    releases = set[Key]()
    with suppress(Forbidden):  # without permission for Secrets, the other findings are still true
        for item in (await kube.list(SECRET, selector="owner=helm", bare=True)).items:
            releases.add(Key(item["metadata"]["namespace"], labels_of(item).get("name", "")))
    findings = [check_component(chart, existing, deployments.result().items, releases) for chart in STACK]
    installed = [finding.check for finding in findings if finding.says.endswith(INSTALLS)]
    return [*findings, await _check_account(kube, installed)]


async def _check_account(kube: Kube, charts: Sequence[str]) -> Finding:
    """Check that the operator's account may install charts, if there is an account."""
    remedy = "kubectl apply -f examples/access/with-helm.yaml, on this cluster"
    if await kube.find(SERVICE_ACCOUNT, ACCOUNT) is None:
        return Finding("account", ok=True, says="the operator has none here, and register needs it", remedy=remedy)
    user = {"user": f"system:serviceaccount:{ACCOUNT.namespace}:{ACCOUNT.name}"}
    if await may(kube, "create", CLUSTER_ROLE, Key("", ""), user=user):
        return Finding("account", ok=True, says="the operator may install charts", remedy="")
    if not charts:
        return Finding("account", ok=True, says="the operator may install no charts, and needs none", remedy="")
    says = f"the operator may not install charts, so these fail: {list_names(charts, len(STACK))}"
    return Finding(
        "account",
        ok=False,
        says=says,
        remedy=f"{remedy}; or install these yourself, and turn them off in spec.stack of the InferenceCluster",
    )


def check_component(
    chart: StackChart,
    definitions: Sequence[Manifest],
    deployments: Sequence[Manifest],
    releases: Collection[Key] = (),
) -> Finding:
    """Describe what happens to a component of the serving stack when the cluster is registered.

    The operator decides in the same way (`clusters/stack/controller.py`), and refuses a release that is another's.
    """
    installer = holder(chart.marker, chart.release, definitions, deployments)
    if installer and (chart.yields or not chart.default):
        return Finding(
            chart.name,
            ok=True,
            says=f"is installed by {installer}: a ServingStack keeps that one",
            remedy=f"to install the stack's own as well, name {chart.name} in spec.stack of the InferenceCluster",
        )
    turn_off = f"turn {chart.name} off in spec.stack of the InferenceCluster"
    if installer:
        return Finding(
            chart.name,
            ok=False,
            says=f"is installed by {installer}: a ServingStack would install another one, which conflicts with it",
            remedy=f"uninstall it, or {turn_off}",
        )
    if not chart.default:
        return Finding(chart.name, ok=True, says="is not installed, and no other component needs it", remedy="")
    if chart.release in releases:
        # Helm takes a release for one of the same name, and the operator changes only its own.
        uninstall = f"helm uninstall {chart.release.name} -n {chart.release.namespace}"
        return Finding(
            chart.name,
            ok=False,
            says=f"release {chart.release} of another ServingStack exists, so installing it fails",
            remedy=f"delete the InferenceCluster that it belongs to, or: {uninstall}; or {turn_off}",
        )
    return Finding(chart.name, ok=True, says=f"is not installed: {INSTALLS}", remedy="")


def check_devices(pools: Sequence[Pool]) -> Finding:
    """Describe the devices that DRA drivers publish."""
    description = "; ".join(f"{count_of(len(pool.nodes), 'node')} with {pool.description}" for pool in pools)
    remedy = "" if pools else "if no ServingStack installs the DRA driver, install one"
    return Finding("devices", ok=True, says=description or "no driver has published devices", remedy=remedy)


def check_services(services: Sequence[Manifest]) -> Finding:
    """Check that load balancers get addresses, as far as there are any."""
    # Kubernetes reports no support for load balancers; only an existing Service shows that one gets an address.
    balancers = [service for service in services if section(service, "spec").get("type") == "LoadBalancer"]
    pending = [
        service["metadata"]["name"]
        for service in balancers
        if not entries(service, "status", "loadBalancer", "ingress")
    ]
    if pending:
        remedy = "install something that gives addresses to load balancers, such as MetalLB"
        return Finding("load balancers", ok=False, says=f"no address for {list_names(pending)}", remedy=remedy)
    summary = f"{len(balancers)} with an address" if balancers else "not tested, as the cluster has none yet"
    return Finding(
        "load balancers",
        ok=True,
        says=summary,
        remedy="" if balancers else "create a Service of type LoadBalancer to test it",
    )


async def _discover_hardware(kube: Kube) -> tuple[tuple[Pool, ...], Sequence[Manifest]]:
    """Return the discovered node pools, and the nodes."""
    async with asyncio.TaskGroup() as group:
        nodes = group.create_task(kube.list(NODE))
        slices = group.create_task(kube.list(RESOURCE_SLICE))
        classes = group.create_task(kube.list(DEVICE_CLASS))
    class_names = [device_class["metadata"]["name"] for device_class in classes.result().items]
    return discover_pools(nodes.result().items, slices.result().items, class_names), nodes.result().items


def register(
    name: Annotated[str, typer.Argument(help="Name of the new InferenceCluster.", metavar="NAME")],
    from_context: Annotated[str, typer.Option("--from-context", help="The context of that cluster in the kubeconfig.")],
    server: Annotated[
        str | None, typer.Option("--server", help="API server address that the hub uses; default: the context's.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the objects without the Secret; write nothing.")
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Add a cluster: label its nodes, and create its Secret, InferenceClasses and InferenceCluster on the hub."""
    candidate, out = hub(kubeconfig, from_context), console()
    pools, _ = ask(candidate, _discover_hardware)
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
            sys.stdout.write("---\n".join(yaml.safe_dump(item, sort_keys=False) for item in objects))
        return

    async def prepare(kube: Kube) -> str:
        """Label the nodes, and return a kubeconfig with a token of the operator's service account."""
        token, authority = await _request_credentials(kube, from_context)
        for pool in pools:
            for node in pool.unlabelled:
                # Not forced: a label that another field manager owns is not overwritten, and the command fails.
                metadata = {"name": node, "labels": {labels.POOL: pool.name}}
                await kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata}, force=False)
        # The hub gets only the service account's token, never the user's own certificate, key or token file.
        access = replace(candidate.access, server=server or candidate.access.server, authority=authority, token=token)
        return write_kubeconfig(replace(access, certificate="", key="", token_file=None, verify=True))

    # The candidate comes first: if it refuses, nothing is written to the hub.
    new_kubeconfig = ask(candidate, prepare)
    ask(hub(kubeconfig, context), lambda kube: _create_objects(kube, name, new_kubeconfig, objects))
    if output.is_structured:
        joined_pools = tuple(Joined(item.name, item.description, tuple(item.nodes)) for item in pools)
        print_structured("Register", Registration(name, joined_pools), output)
        return
    for pool in pools:
        out.print(text(f"pool {pool.name}: {count_of(len(pool.nodes), 'node')} with {pool.description}"))
    out.print("", f"{text(name)} is registered. Watch its progress: modelplane fleet -w")


@dataclass(frozen=True, slots=True)
class Joined:
    """A pool of nodes of a registered cluster."""

    pool: str
    """Name of the node pool, also the value of its label on the nodes."""
    description: str
    """Devices of each node, for people."""
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Registration:
    """The result of the command, as a document."""

    cluster: str
    pools: tuple[Joined, ...]
    """Discovered node pools, each of which has an InferenceClass."""


def manifests(name: str, pools: Sequence[Pool]) -> Sequence[Manifest]:
    """Return the InferenceClasses, and the InferenceCluster that references them."""
    existing = {"secretRef": {"name": f"{name}-kubeconfig"}, "credentialRenewal": "TokenRequest"}
    cluster: dict[str, Any] = {
        "apiVersion": InferenceCluster.definition.api_version,
        "kind": InferenceCluster.definition.kind,
        "metadata": {"name": name},
        "spec": {
            "cluster": {"source": "Existing", "existing": existing},
            "nodePools": [pool.in_cluster() for pool in pools],
        },
    }
    return (*(pool.inference_class() for pool in pools), cluster)


async def _request_credentials(kube: Kube, context: str) -> tuple[str, str]:
    """Return a token of the operator's service account, and the API server's CA certificate.

    Raise No without an account.
    """
    try:
        token = await kube.request_token(ACCOUNT, TOKEN_SECONDS)
        bundle = await kube.get(CONFIG_MAP, Key(ACCOUNT.namespace, "kube-root-ca.crt"))
    except NotFound:
        raise No(
            f"the operator has no account there: kubectl --context {context} apply -f examples/access/with-helm.yaml "
            "(docs/permissions.md says which of the two manifests to take)"
        ) from None
    return token, str(section(bundle, "data").get("ca.crt") or "")


async def _create_objects(kube: Kube, name: str, kubeconfig: str, objects: Sequence[Manifest]) -> None:
    """Create the Secret, then the classes and the cluster. Existing classes are left unchanged."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{name}-kubeconfig", "namespace": names.SYSTEM_NAMESPACE},
        "data": {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()},
    }
    # Checked before the Secret is written, which would otherwise replace the kubeconfig of an existing cluster.
    if await kube.find(of(InferenceCluster), Key("", name)) is not None:
        raise No(f"there is an InferenceCluster {name} already: delete it, or choose another name")
    await kube.apply(secret)
    for manifest in objects:
        try:
            await kube.create(manifest)
        except AlreadyExists:
            # Clusters with equal hardware share an InferenceClass, whose owner may have edited it.
            if manifest["kind"] != InferenceClass.definition.kind:
                raise
