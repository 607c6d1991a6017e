"""The demo's hub has what the chart makes on a hub, but for pods and networks: what is tried is what is installed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from localfleet import binaries
from scripts import chart, demo, demo_story, terminal

pytestmark = pytest.mark.fleet


def test_the_demo_has_the_accounts_rights_and_policies_of_the_chart() -> None:
    manifests = chart.rendered(binaries.ensure("helm")["helm"], "modelplane-system")

    there = chart.without_pods(manifests, "modelplane-system", "https://localhost:9443/")
    assert {one["kind"] for one in there} == {
        *("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration"),
        *("CustomResourceDefinition", "FlowSchema"),
    }
    (hooks,) = (one["webhooks"] for one in there if one["kind"] == "ValidatingWebhookConfiguration")
    assert [one["clientConfig"] for one in hooks] == [{"url": "https://localhost:9443/"}] * 2
    accounts = {one["metadata"]["name"] for one in manifests if one["kind"] == "ServiceAccount"}
    assert {"modelplane-operator", demo.HUB_GATEWAY, "modelplane-keys"} <= accounts
    assert "--hub-gateway=apart" in chart.arguments(manifests)
    assert chart.arguments(manifests, demo.HUB_GATEWAY) == ["hub-gateway"]


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_what_the_demo_says_fits_the_terminal_and_can_be_pasted(columns: int, tmp_path: Path) -> None:
    """But for a path, which cannot be broken."""
    said = demo_story.next_steps(tmp_path / "env", str(tmp_path))
    folded = terminal.folded(said, columns)

    for line in folded.splitlines():
        assert len(line) <= columns or max(map(len, line.split())) > columns - 12, line
    assert [words(command) for command in demo_story.commands(folded)] == [
        words(command) for command in demo_story.commands(said)
    ]


def words(command: str) -> list[object]:
    """What a shell reads: JSON by what it says."""
    return [json.loads(word) if re.match(r"[{\[]", word) else word for word in shlex.split(command)]


def test_a_note_of_a_step_is_cut_where_the_terminal_ends() -> None:
    assert terminal.short("x" * 80, 80) == "x" * 80
    assert terminal.short("x" * 81, 80) == "x" * 77 + "..."


def test_prose_is_folded_at_its_words() -> None:
    assert terminal.folded("one two-three four", 9) == "one\ntwo-three\nfour"
