"""The tables of docs/permissions.md say what the manifests grant, and no rule goes without a word."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from scripts.pages import placed
from scripts.permissions import LLM_INFERENCES, ROOT, Rule, rules

PARTS = ("apiGroups", "resources", "verbs", "resourceNames")

ROLE = """
kind: Role
metadata:
  name: {{ include "name" . }}
rules:
  # Two lines
  # of reason.
  - apiGroups: [""]
    resources: [secrets, configmaps]
    verbs: [get]
  {{- if .Values.more }}
  # Only sometimes.
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [modelplane-operator]
    verbs:
      - get
      - update
  {{- end }}
  {{- if eq $namespace "there" }}
  # Only there.
  - apiGroups: [""]
    resources: [pods]
    verbs: [get]
  {{- end }}
  # Always.
  - apiGroups: [apps]
    resources: [deployments]
    verbs: [list]
{{- end }}
---
kind: RoleBinding
"""


def test_every_rule_is_read_with_its_reason_and_its_condition() -> None:
    assert rules(ROLE, "Role") == [
        Rule("Two lines of reason.", ("",), ("secrets", "configmaps"), ("get",)),
        Rule(
            "Only sometimes.",
            ("coordination.k8s.io",),
            ("leases",),
            ("get", "update"),
            ("modelplane-operator",),
            condition="With `more`.",
        ),
        Rule("Only there.", ("",), ("pods",), ("get",), condition="Only in `there`."),
        Rule("Always.", ("apps",), ("deployments",), ("list",)),
    ]


def test_a_rule_without_a_reason_is_refused() -> None:
    with pytest.raises(SystemExit, match="a comment is missing"):
        rules(ROLE.replace("  # Always.\n", ""), "Role")


def test_a_condition_that_there_are_no_words_for_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"the page has no words for {{ if not \.Values\.more }}"):
        rules(ROLE.replace("if .Values.more", "if not .Values.more"), "Role")


def test_a_row_says_what_whom_and_why() -> None:
    rule = rules(ROLE, "Role")[1]

    assert rule.row() == (
        "| `leases` of `coordination.k8s.io` named `modelplane-operator` | get, update | Only sometimes. With `more`. |"
    )


PLACE = "# Page\n<!-- keys -->\nold\n<!-- end of keys -->\nafter\n"


def test_a_table_stands_in_its_place() -> None:
    assert placed(PLACE, "keys", "new\n") == PLACE.replace("old", "new")


@pytest.mark.parametrize("page", ["# Page\n", PLACE * 2, PLACE.replace("<!-- end of keys -->\n", "")])
def test_a_page_that_has_lost_a_place_or_has_it_twice_is_refused(page: str) -> None:
    with pytest.raises(SystemExit, match="'keys' once"):
        placed(page, "keys", "new\n")


@pytest.mark.parametrize("file", ["llminferences.yaml", "tenant-cluster.yaml"])
def test_a_cluster_gives_for_llm_inferences_what_the_hub_gives(file: str) -> None:
    of_cluster = yaml.safe_load_all((ROOT / "examples/access" / file).read_text())
    role = next(one for one in of_cluster if one["kind"] == "Role")

    assert [Rule("", *(tuple(one.get(part, ())) for part in PARTS)) for one in role["rules"]] == [
        replace(one, why="") for one in rules(LLM_INFERENCES.read_text(), "Role")
    ]
