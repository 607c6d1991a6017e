"""The three programs as commands: their help, and what they say of input that means nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

PROXY = ["faultproxy", "--write-kubeconfig=/nowhere/k", "--control-socket=/nowhere/s", "--upstream-kubeconfig"]
EMPTY = "clusters: []\ncontexts: []\ncurrent-context: nobody\n"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"localfleet.{arguments[0]}", *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("engine", ["--kubeconfig", "--probe-scale", "localfleet.dev/startup-seconds", "localfleet.dev/node-down"]),
        ("faultproxy", ["--upstream-kubeconfig", "--control-socket", "InjectGone"]),
        ("leaderworkerset", ["--install-crd", "RecreateGroupOnPodRestart"]),
    ],
)
def test_help_tells_the_whole_contract(program: str, words: list[str]) -> None:
    said = run(program, "--help")

    assert said.returncode == 0
    assert [word for word in words if word not in said.stdout] == []


@pytest.mark.parametrize(
    ("command", "text"),
    [(["engine", "--kubeconfig"], EMPTY), (["leaderworkerset", "--kubeconfig"], "just a line"), (PROXY, EMPTY)],
)
def test_a_kubeconfig_without_meaning_is_one_clear_line(tmp_path: Path, command: list[str], text: str) -> None:
    (tmp_path / "kubeconfig").write_text(text)

    said = run(*command, str(tmp_path / "kubeconfig"))

    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert str(tmp_path / "kubeconfig") in said.stderr


def test_a_default_without_meaning_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(EMPTY)

    said = run("engine", "--kubeconfig", str(tmp_path / "kubeconfig"), "--default", "speed=fast")

    assert said.returncode == 2
    assert "there is no setting 'speed'" in " ".join(said.stderr.split())
