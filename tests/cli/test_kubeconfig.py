"""Kubeconfigs as kubectl reads them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeloop.errors import KubeconfigError
from modelplane_operator.cli.kubeconfig import target

Manifest = dict[str, Any]


def config(name: str, *, user: Manifest | None = None, namespace: str = "", current: str = "") -> Manifest:
    context = {"cluster": name, "user": name, **({"namespace": namespace} if namespace else {})}
    return {
        "current-context": current,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example.com:6443"}}],
        "contexts": [{"name": name, "context": context}],
        "users": [{"name": name, "user": {"token": f"token-of-{name}"} if user is None else user}],
    }


def written(folder: Path, name: str, content: Manifest) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(content))
    return path


def test_of_several_files_the_first_word_counts_and_a_context_may_be_in_any(tmp_path: Path) -> None:
    one = written(tmp_path, "one", config("hub", namespace="ml-team", current="hub"))
    two = written(tmp_path, "two", {**config("hub", namespace="other", current="lab"), "x": 1})
    three = written(tmp_path, "three", config("lab"))
    environment = {"KUBECONFIG": os.pathsep.join(map(str, (one, two, tmp_path / "absent", three)))}

    found = target(None, None, environment)
    assert (found.access.server, found.namespace, found.context) == ("https://hub.example.com:6443", "ml-team", "hub")
    lab = target(None, "lab", environment)
    assert (lab.access.token, lab.namespace) == ("token-of-lab", "default")


def test_a_file_that_is_named_is_the_only_one(tmp_path: Path) -> None:
    lab = written(tmp_path, "lab", config("lab", current="lab"))
    other = written(tmp_path, "hub", config("hub", current="hub"))
    assert target(lab, None, {"KUBECONFIG": str(other)}).context == "lab"


def test_paths_begin_where_their_file_is(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file")
    content = config("hub", user={"tokenFile": "token"}, current="hub")
    assert target(written(tmp_path, "kubeconfig", content), None, {}).access.token_file == tmp_path / "token"


def program(folder: Path, answer: str, code: int = 0) -> Path:
    """A program that gives credentials, and writes down what it was asked."""
    path = folder / "sign-in"
    asked = folder / "asked"
    path.write_text(f"#!/bin/sh\nprintf %s \"$KUBERNETES_EXEC_INFO\" > {asked}\nprintf %s '{answer}'\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def executed(folder: Path, command: str) -> Path:
    asked = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": command,
        "interactiveMode": "Never",
        "provideClusterInfo": True,
    }
    return written(folder, "kubeconfig", config("hub", user={"exec": asked}, current="hub"))


def test_a_program_gives_the_token(tmp_path: Path) -> None:
    program(tmp_path, json.dumps({"kind": "ExecCredential", "status": {"token": "fresh"}}))
    assert target(executed(tmp_path, "./sign-in"), None, {}).access.token == "fresh"  # noqa: S105
    asked = json.loads((tmp_path / "asked").read_text())
    assert asked["spec"] == {"interactive": False, "cluster": {"server": "https://hub.example.com:6443"}}


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ("{}", 3, "gave no credentials: it ended with 3"),
        ("secret", 0, "gave something else than an ExecCredential"),
    ],
)
def test_a_program_that_fails_is_named_and_not_repeated(tmp_path: Path, answer: str, code: int, words: str) -> None:
    program(tmp_path, answer, code)
    with pytest.raises(KubeconfigError, match=words) as told:
        target(executed(tmp_path, "./sign-in"), None, {})
    assert "secret" not in str(told.value)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="the program no-such-program for credentials is not installed"):
        target(executed(tmp_path, "no-such-program"), None, {})


def test_a_context_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    path = written(tmp_path, "kubeconfig", config("hub", current="hub"))
    with pytest.raises(KubeconfigError, match=r"there is no context lab \(there are hub\)"):
        target(path, "lab", {})


def test_without_a_kubeconfig_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(KubeconfigError, match="there is no kubeconfig"):
        target(None, None, {})
