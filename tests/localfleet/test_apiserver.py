"""The lone API server: what it promises to the tests that stand on it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from localfleet import apiserver
from localfleet.apiserver import ApiServer, api_server
from localfleet.errors import ProcessDiedError

pytestmark = pytest.mark.fleet


def kubectl(server: ApiServer, *arguments: str) -> Any:
    command = [server.binaries["kubectl"], "--kubeconfig", server.kubeconfig, *arguments, "-o", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_it_is_the_pinned_kubernetes_and_its_kubeconfig_is_the_administrators() -> None:
    with api_server() as server:
        assert kubectl(server, "version")["serverVersion"]["gitVersion"] == "v1.36.3"
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        wish = {"spec": {"resourceAttributes": {"verb": "*", "resource": "*", "group": "*"}}}
        asked = json.dumps({**review, **wish})
        command = [server.binaries["kubectl"], "--kubeconfig", server.kubeconfig, "create", "-f-", "-o", "json"]
        reply = subprocess.run(command, check=True, capture_output=True, text=True, input=asked)
        assert json.loads(reply.stdout)["status"]["allowed"]


def test_it_serves_admission_policies_and_device_classes() -> None:
    with api_server() as server:
        assert kubectl(server, "get", "validatingadmissionpolicies")["items"] == []
        assert kubectl(server, "get", "deviceclasses.resource.k8s.io")["items"] == []


def test_nothing_is_left_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apiserver.tempfile, "tempdir", str(tmp_path))

    with api_server() as server:
        assert list(tmp_path.iterdir()) == [server.kubeconfig.parent]

    assert list(tmp_path.iterdir()) == []
    assert not [line for line in command_lines() if str(tmp_path) in line]


def test_a_flag_it_does_not_know_ends_with_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apiserver.tempfile, "tempdir", str(tmp_path))

    with pytest.raises(ProcessDiedError, match="unknown flag: --no-such-flag"), api_server("--no-such-flag"):
        pass

    assert list(tmp_path.iterdir()) == []


def command_lines() -> list[str]:
    lines: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
    return lines
