"""The tables of docs/permissions.md: what the operator may do, rule by rule, and the comment above each rule.

The manifests are the table: what is granted and what is told cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from scripts.pages import placed

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/permissions.md")
HUB = ROOT / "charts/modelplane-operator/templates/rbac.yaml"
TENANTS = ROOT / "charts/modelplane-operator/templates/tenants.yaml"
GATEWAYS = ROOT / "charts/modelplane-operator/templates/gateway-account.yaml"
HUB_GATEWAY = ROOT / "charts/modelplane-operator/templates/hub-gateway.yaml"
TRAEFIK = ROOT / "charts/modelplane-operator/templates/traefik.yaml"
LLM_INFERENCES = ROOT / "charts/modelplane-operator/templates/llm-inferences.yaml"
KEYS = ROOT / "charts/modelplane-operator/templates/keys.yaml"
CLUSTER = ROOT / "examples/access/own-software.yaml"
TABLES = {
    "hub": (HUB, "ClusterRole"),
    "tenants": (TENANTS, "ClusterRole"),
    "system namespace": (HUB, "Role"),
    "gateways": (GATEWAYS, "ClusterRole"),
    "gateways in the system namespace": (GATEWAYS, "Role"),
    "hub gateway": (HUB_GATEWAY, "ClusterRole"),
    "hub gateway namespaces": (HUB_GATEWAY, "Role"),
    "llm inferences": (LLM_INFERENCES, "Role"),
    "traefik": (TRAEFIK, "ClusterRole", "modelplane-traefik"),
    "traefik tenants": (TRAEFIK, "ClusterRole", "modelplane-traefik-tenant"),
    "keys": (KEYS, "ClusterRole"),
    "keys of the system namespace": (KEYS, "Role"),
    "cluster": (CLUSTER, "ClusterRole"),
    "cluster's own namespace": (CLUSTER, "Role"),
}
"""What the page calls them, and the manifest, the kind of role and, of several, the name that each is of."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a role, and why it is there."""

    why: str
    groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Only objects of these names; none: all."""
    condition: str = ""
    """When there is such a rule, as a sentence; empty: always."""

    def row(self) -> str:
        of = f" of {listed(self.groups)}" if any(self.groups) else ""
        named = f" named {listed(self.names)}" if self.names else ""
        why = " ".join(filter(None, (self.why, self.condition)))
        return f"| {listed(self.resources)}{of}{named} | {', '.join(self.verbs)} | {why} |"


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def page() -> str:
    """The page, with its tables as the manifests have them."""
    text = (ROOT / PAGE).read_text()
    for name, (file, *role) in TABLES.items():
        rows = "\n".join(rule.row() for rule in rules(file.read_text(), *role))
        text = placed(text, name, f"| Objects | May | What for |\n|---|---|---|\n{rows}\n")
    return text


def rules(text: str, kind: str, name: str = "") -> list[Rule]:
    """The rules of the role of that kind in a manifest, or in a chart's template of one; of several, by its name."""
    for document in text.split("\n---\n"):
        head, _, body = document.partition("\nrules:\n")
        if body and f"\nkind: {kind}\n" in head and (not name or f"\n  name: {name}\n" in head):
            return list(_rules(body.splitlines()))
    raise SystemExit(f"permissions: there is no {kind} {name}".rstrip())


def _rules(lines: Iterable[str]) -> Iterator[Rule]:
    why, rule, condition = list[str](), list[str](), ""
    for line in [*lines, "  #"]:
        template = re.match(r"\s*{{-? *(if|end)\b *(.*?) *-?}}", line)
        comment = line.lstrip().startswith("#")
        if rule and (template or comment or line.startswith("  - ")):
            yield _rule(" ".join(why), "\n".join(rule), condition)
            why, rule = [], []
        if template:
            condition = _condition(template[2])
        elif comment:
            why.append(line.strip(" #"))
        else:
            rule.append(line)


def _condition(said: str) -> str:
    """What a chart's template asks, in words: whether a value is set, or which namespace this is."""
    asked = re.fullmatch(r"\.Values\.(?P<value>\S+)|(?P<only>eq|ne) \$namespace \"(?P<namespace>\S+)\"|", said)
    if asked is None:
        raise SystemExit(f"permissions: the page has no words for {{{{ if {said} }}}}")
    if value := asked["value"]:
        return f"With `{value}`."
    if namespace := asked["namespace"]:
        return f"{'Only' if asked['only'] == 'eq' else 'Not'} in `{namespace}`."
    return ""


def _rule(why: str, text: str, condition: str) -> Rule:
    if not why:
        raise SystemExit(f"permissions: a comment is missing that says what this rule is for:\n{text}")
    (said,) = yaml.safe_load(text)
    parts = (tuple(said.get(part, ())) for part in ("apiGroups", "resources", "verbs", "resourceNames"))
    return Rule(why, *parts, condition=condition)
