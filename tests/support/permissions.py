"""What an account may do, and what it asked for, as API servers' audit logs have it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from localfleet import binaries
from localfleet.fleet import Fleet, Options
from scripts.permissions import CLUSTER, GATEWAYS, HUB, LLM_INFERENCES, TENANTS, rules
from tests.integration import kinds
from tests.support.chart import permissions, rendered
from tests.support.hub import SYSTEM, Hub
from tests.support.manifests import ROOT, Manifest

TEAM = "team"
ACCESS = "modelplane-access"
GATEWAY = f"system:serviceaccount:{SYSTEM}:modelplane-operator-hub-gateway"
ON_HUB, ON_CLUSTERS = (f"system:serviceaccount:{home}:modelplane-operator" for home in (SYSTEM, ACCESS))
EVERYWHERE = ""
QUICK = (
    *("--drain-grace=1", "--engine-drain=1", "--engine-grace=10", "--hydrator-image=operator:test"),
    "--allow-endpoints=inference.example.com",  # which does not exist
    "--admission-listen=127.0.0.1:0",
)


class Permission(NamedTuple):
    """One verb on one type of objects, everywhere or in a namespace."""

    verb: str
    resource: str
    """As RBAC writes it, and its group: `modelreplicas/status.modelplane.ai`."""
    namespace: str = EVERYWHERE

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f' in {self.namespace}' if self.namespace else ''}"


def every(verbs: str, group: str, *resources: str) -> list[str]:
    return [".".join(filter(None, (f"{verb} {resource}", group))) for verb in verbs.split() for resource in resources]


OURS, CLOUDS = "modelplane.ai", "infrastructure.modelplane.ai"
OF_STACKS = [
    *every("create patch delete", CLOUDS, "servingstacks"),
    *every("update", CLOUDS, "servingstacks/status"),
]


def granted(file: Path, kind: str, namespace: str = EVERYWHERE) -> set[Permission]:
    told = rules(file.read_text(), kind)
    return {
        permission for rule in told for permission in _permissions(rule.groups, rule.resources, rule.verbs, namespace)
    }


def given(roles: Iterable[Manifest]) -> set[Permission]:
    """What roles give, all of them together."""
    return {
        permission
        for role in roles
        for rule in role.get("rules") or ()
        for permission in _permissions(
            *(rule.get(part, ()) for part in ("apiGroups", "resources", "verbs")),
            role["metadata"].get("namespace", EVERYWHERE),
        )
    }


def _permissions(
    groups: Iterable[str], resources: Iterable[str], verbs: Iterable[str], namespace: str
) -> Iterator[Permission]:
    for group, resource, verb in product(groups, resources, verbs):
        yield Permission(verb, ".".join(filter(None, (resource, group))), namespace)


def asked(events: Iterable[Manifest], user: str) -> Iterator[tuple[Permission, int]]:
    """What a user asked for, where, and the status of the answer."""
    for event in events:
        target, code = event.get("objectRef"), event.get("responseStatus", {}).get("code", 0)
        if event["user"]["username"] != user or target is None:
            continue
        resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
        named = ".".join(filter(None, (resource, target.get("apiGroup"))))
        verbs = (event["verb"], "create") if (event["verb"], code) == ("patch", 201) else (event["verb"],)
        for verb in verbs:  # whoever applies what is not there needs both
            yield Permission(verb, named, target.get("namespace", EVERYWHERE)), code


def idle(events: Iterable[Manifest], user: str, may: set[Permission], known: Mapping[str, Iterable[str]]) -> list[str]:
    """The permissions of a user that nothing needed, but for those that are known."""
    needed = {permission for permission, _ in asked(events, user)}
    used = {permission if permission in may else permission._replace(namespace=EVERYWHERE) for permission in needed}
    return sorted(set(map(str, may - used)).difference(*known.values()))


def refused(events: Iterable[Manifest], user: str) -> list[str]:
    return [str(permission) for permission, code in asked(events, user) if code == 403]


GATEWAY_PERMISSIONS = granted(GATEWAYS, "ClusterRole") | granted(GATEWAYS, "Role", SYSTEM)
HUB_PERMISSIONS = granted(HUB, "ClusterRole") | granted(TENANTS, "ClusterRole") | granted(HUB, "Role", SYSTEM)
HUB_PERMISSIONS |= GATEWAY_PERMISSIONS
"""Those of the operator where it reconciles InferenceGateways itself."""
LLM_PERMISSIONS = granted(LLM_INFERENCES, "Role", "inference-large")
PERMISSIONS = granted(CLUSTER, "ClusterRole") | granted(CLUSTER, "Role", ACCESS)


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[Fleet]:
    """A hub, and a cluster with software of its own, that write down who asks for what."""
    fleet = Fleet(tmp_path / "fleet")
    try:
        fleet.up(Options(workers=1, audit=True))
        yield fleet
    finally:
        fleet.down()


def accounts(*values: str) -> Manifest:
    """What of the chart says who the operator is on the hub, and what it may do there."""
    return {"apiVersion": "v1", "kind": "List", "items": asyncio.run(permissions(*values))}


def webhook() -> Manifest:
    """Whom the hub's API server asks of what is written: nobody here, as no Service leads to the operator."""
    (found,) = [one for one in asyncio.run(rendered()) if one["kind"] == "ValidatingWebhookConfiguration"]
    return found


def bring(hub: Hub, name: str, manifest: str, *, named: str) -> None:
    """Make an account on a cluster, and put its kubeconfig on the hub, as docs/permissions.md says."""
    hub.kubectl("apply", "-f", str(ROOT / "examples" / "access" / manifest), on=name)
    hub.apply(kinds.secret(SYSTEM, named, kubeconfig=as_account(hub, name)))


def as_account(hub: Hub, name: str, *, lasting: str = "24h") -> str:
    """The kubeconfig of the account on a cluster, as examples/access/kubeconfig.sh writes it."""
    authority = ("get", "configmap", "kube-root-ca.crt", "-n", ACCESS, "--ignore-not-found", "-oname")
    hub.until(lambda: hub.kubectl(*authority, on=name) != "", "the cluster's certificate to be published")
    administrator, kubectl = hub.fleet.kubeconfig(name), binaries.ensure("kubectl")["kubectl"]
    (cluster,) = yaml.safe_load(administrator.read_text())["clusters"]
    done = subprocess.run(
        [ROOT / "examples" / "access" / "kubeconfig.sh", cluster["cluster"]["server"], "/dev/stdout"],
        env={
            "PATH": f"{kubectl.parent}:{os.environ['PATH']}",
            "HOME": str(administrator.parent),  # for what kubectl keeps
            "KUBECONFIG": str(administrator),
            "DURATION": lasting,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def as_operator(hub: Hub, account: str = "modelplane-operator") -> str:
    """Return a kubeconfig of an account of the chart's."""
    config = yaml.safe_load(hub.fleet.kubeconfig("hub").read_text())
    config["users"][0]["user"] = {"token": hub.kubectl("-n", SYSTEM, "create", "token", account).strip()}
    return yaml.safe_dump(config)
