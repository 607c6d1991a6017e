"""What the demo prints to be typed does what it says, pasted in its printed order; so does docs/tour.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from modelplane_operator.api import InferenceGateway
from scripts import demo, demo_story
from tests.support.console import Command, Shell, commands, saying
from tests.support.manifests import ROOT, load

README, TOUR = ROOT / "README.md", ROOT / demo_story.TOUR


def test_six_offers_are_printed_and_the_page_is_first(tmp_path: Path) -> None:
    printed = demo_story.next_steps(tmp_path / "env", "")

    assert re.findall(r"^\d+", printed, re.MULTILINE) == list("123456")
    assert list(demo_story.commands(printed))[:2] == [f". {tmp_path}/env", "modelplane page &"]
    assert list(demo_story.commands(printed))[-1] == "make demo-down"
    assert not any("--watch" in each for each in demo_story.commands(printed)), "it would keep what is pasted after it"


def test_the_tour_has_eight_more() -> None:
    headings = re.findall(r"^## (.+)$", TOUR.read_text(), re.MULTILINE)

    assert len(headings) == 8 + len(["End"])
    for each in commands(TOUR):
        assert "--watch" not in each.text


def test_the_demo_says_what_is_simulated_and_names_its_gateway() -> None:
    for backend, name in demo_story.GATEWAYS.items():
        said = demo_story.opening(backend)
        assert "Simulated: the GPUs, and the model" in said
        assert f"{name} as the hub gateway" in said
    spec = demo.gateway_spec()
    assert InferenceGateway.parse(next(iter(load(demo.PLATFORM)))).spec.backend == spec["backend"]
    assert spec["backend"] in demo_story.GATEWAYS


def test_a_shell_reads_the_environment(tmp_path: Path) -> None:
    variables = {"KUBECONFIG": f"{tmp_path}/a folder/config", "URL": "http://10.180.0.1/a/b", "FLEET": "it's"}
    text = demo_story.environment(variables, tmp_path / "a bin")
    script = text + "".join(f'echo "${name}"\n' for name in (*variables, "PATH"))

    done = subprocess.run(["sh", "-c", script], env={"PATH": "/bin"}, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == [*variables.values(), f"{tmp_path}/a bin:/bin"]


def test_commands_go_on_after_a_backslash_and_in_quotes() -> None:
    text = "Say:\n  one \\\n    two 'a,\n    b' \\\n    c\nThen\n  - no command\n  three\n"

    assert list(demo_story.commands(text)) == ["one two 'a,\n    b' c", "three"]


def test_a_path_in_the_home_directory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")

    said = demo_story.next_steps(Path("/home/me/.local/state/my fleet/env"), "")

    assert "  . ~/'.local/state/my fleet/env'\n" in said


# With a fleet ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The folder of a fleet of this test alone, which ends with it."""
    folder = tmp_path / "fleet"
    yield folder
    run_demo(folder, "--down")


def offered(home: Path) -> Sequence[str]:
    """Run the demo as `make demo` does; return the commands that it offers."""
    _, heading, text = run_demo(home).partition("\nWhat to type next")
    assert heading
    return list(demo_story.commands(text))


def run_demo(home: Path, *arguments: str) -> str:
    command = [sys.executable, "scripts/demo.py", *arguments]
    environment = variables(home)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def variables(home: Path) -> Mapping[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in {"KUBECONFIG", "URL"}}
    return plain | {"LOCALFLEET_HOME": str(home), "COLUMNS": "100", "PYTHONPATH": str(ROOT)}


def pasted(home: Path, typed: Sequence[Command]) -> Sequence[tuple[Command, str]]:
    """Type commands into one shell; return each with what it printed."""
    return list(Shell([], ROOT, variables(home), seconds=900).run(typed))


PROMISES = {
    "scale modeldeployment": "scaled",
    "curl": f'You asked \\"Who are you?\\". I am {demo_story.MODEL}',
    "get inferenceclusters": "worker-2",
    "modelplane why": "ml-team/too-big is not Ready (NoMatchingDevices",
    "get modeldeployments,modelservices": "modelservice",
    "make demo-down": "the fleet is down",
}
"""What is in the answer of a printed command in which this stands."""
CODES = {"modelplane why": 3}
"""What a printed command ends with, where that is not 0: the answer is no."""


@pytest.mark.fleet
@pytest.mark.slow
def test_what_the_demo_offers_ends_well_pasted_in_its_order(home: Path) -> None:
    typed = [
        Command(Path("printed"), number, each, code=next((CODES[key] for key in CODES if key in each), 0))
        for number, each in enumerate(offered(home))
    ]

    ran = pasted(home, typed)

    assert saying(ran, PROMISES) == PROMISES.keys()
    whole = "".join(printed for _, printed in ran)
    assert re.search(r"^http://127\.0\.0\.1:\d+/#token=\S+$", whole, re.MULTILINE), "the page prints its address"
    first, scaled, moved = (
        clusters(printed)
        for command, printed in ran
        if "get modelreplicas" in command.text or "get modeldeployments," in command.text
    )
    assert sorted(first) == ["worker-1", "worker-2"]
    assert sorted(scaled) == ["worker-1"] * 2 + ["worker-2"] * 2
    assert moved == ["worker-1"] * 4
    (cut, heal) = (number for number, (command, _) in enumerate(ran) if "localfleet fault" in command.text)
    assert any("curl" in command.text for command, _ in ran[cut:heal]), "the URL is asked while the cluster is lost"


def clusters(printed: str) -> Sequence[str]:
    """Return the clusters of the demo's Ready replicas of qwen3-8b, as kubectl prints them."""
    rows = [line.split() for line in printed.splitlines() if re.match(rf"(\S*/)?{demo_story.MODEL}-", line)]
    return [next(word for word in row if word.startswith("worker-")) for row in rows if "True" in row]


SAYS = {
    '"model": "Qwen/': "I am Qwen/Qwen2.5-1.5B-Instruct, a simulated model in pod",
    "get servingstacks -A -o": ": Deployed",
    "get modelcaches": "made-up",
    "--dry-run=server": "worker-1",
    "plan --drain": "worker-2",
    "kubectl wait llmi": "condition met",
    "modelplane drain worker-1 --undo": "worker-1 takes replicas again",
    "%{http_code}": "401",
    "Bearer a-key": '"qwen3-8b"',
    "x-api-key": '"qwen3-8b"',
    "modelplane ask": 'You asked "Hi". I am qwen3-8b',
    "modelplane tree": "Pod qwen3-8b-",
    "tail -n": "{",
    "curl -s -w '\\n' $URL/v1/models": '"qwen3-8b"',
    "make demo-down": "the fleet is down",
}
"""What is in the answer of a command of the tour in which this stands."""


@pytest.mark.fleet
@pytest.mark.slow
def test_the_readme_and_the_tour_end_well_typed_in_their_order(home: Path) -> None:
    first = Command(TOUR, 0, offered(home)[0])
    tour = [each for each in commands(TOUR) if not each.why_not]

    ran = pasted(home, [first, *commands(README), first, *tour])

    assert saying(ran, SAYS) == SAYS.keys()
    (drained,) = (printed for command, printed in ran if command.text == "modelplane drain worker-1")
    assert "worker-1 is empty" in drained
