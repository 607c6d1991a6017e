"""What the demo says: what it shows, what has happened, and what to type next, for readers who are new to operators.

Lines of two spaces and more are commands: each can be pasted, and all of them in their order (`commands`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NAMESPACE, MODEL, CACHED = "ml-team", "qwen3-8b", "made-up"
TOUR = "docs/tour.md"
GATEWAYS = {"Traefik": "Traefik", "EnvoyGateway": "Envoy Gateway"}
"""The name of each backend of an InferenceGateway."""
QUESTION = {"model": MODEL, "messages": [{"role": "user", "content": "Who are you?"}]}
CURL = f"curl -s -w '\\n' $URL/v1/chat/completions -H 'Content-Type: application/json' -d '{json.dumps(QUESTION)}'"
FAULT = ".venv/bin/python -m localfleet fault"
REPLICAS = f"kubectl get modelreplicas -n {NAMESPACE}"
TOO_BIG = f"sed '/^---/,$d; s/{MODEL}$/too-big/; s/22Gi/220Gi/' examples/demo/model.yaml | kubectl apply -f -"


@dataclass(frozen=True, slots=True)
class Offer:
    """Something to try: what happens, and the commands."""

    title: str
    text: str
    commands: Sequence[str]


OFFERS = (
    Offer(
        "See the fleet in a browser",
        "Open the address that this prints. The page is live: watch it while you type the rest.",
        ["modelplane page &"],
    ),
    Offer(
        "Ask the model",
        "The hub gateway sends the request to the gateway of one cluster, and that to the model. "
        "Ask several times: both replicas answer under this one URL.",
        [CURL],
    ),
    Offer(
        "Read what was asked for, and what the operator made of it",
        "You work with all of it by kubectl, as with any other object of Kubernetes.",
        [
            f"kubectl get modeldeployments,modelservices,modelreplicas -n {NAMESPACE}",
            "kubectl get inferenceclusters",
        ],
    ),
    Offer(
        "Scale to four replicas",
        "The operator places two more, on the clusters with the most free nodes.",
        [
            f"kubectl scale modeldeployment {MODEL} -n {NAMESPACE} --replicas=4",
            f"kubectl wait modeldeployment/{MODEL} -n {NAMESPACE} --for=condition=Ready --timeout=2m",
            REPLICAS,
        ],
    ),
    Offer(
        "Lose a cluster",
        "The first command drops every packet to and from worker-2. Within a minute its replicas start on worker-1, "
        "the URL answers as before, and the last two commands bring the cluster back.",
        [
            f"{FAULT} cut worker-2",
            f"kubectl wait modeldeployment/{MODEL} -n {NAMESPACE} --for=condition=Ready=False --timeout=2m",
            f"kubectl wait modeldeployment/{MODEL} -n {NAMESPACE} --for=condition=Ready --timeout=3m",
            REPLICAS,
            CURL,
            f"{FAULT} heal worker-2",
            "kubectl wait inferencecluster/worker-2 --for=condition=Ready --timeout=2m",
        ],
    ),
    Offer(
        "Ask for a GPU that no cluster has",
        "The operator does not guess: it says which cluster comes nearest, and what that one lacks.",
        [
            TOO_BIG,
            f"modelplane why {NAMESPACE}/too-big",
            f"kubectl delete modeldeployment too-big -n {NAMESPACE}",
        ],
    ),
)


def opening(backend: str) -> str:
    """Return what the demo says first; `backend` is that of its InferenceGateway."""
    return f"""\
This demo serves an AI model from two GPU clusters under one URL, all on this machine.

Simulated: the GPUs, and the model, which answers in a few fixed sentences.
Real: what your request passes on its way to the model. That is three Kubernetes clusters, Helm, \
{GATEWAYS[backend]} as the hub gateway, Envoy on each cluster, and Modelplane, the operator that this is about.

An operator is a program that reads objects in Kubernetes and makes the world match them. This one runs on one of the \
clusters, the hub, and works on all."""


def happened(replicas: Mapping[str, str], answer: str, seconds: float) -> str:
    """Return what the demo has done; `replicas` are the names of replicas with their clusters."""
    placed = "\n".join(f"  - {name} runs on {cluster}" for name, cluster in sorted(replicas.items()))
    return f"""
What has happened

- The platform team described its hardware and two empty clusters: examples/demo/platform.yaml. The operator installed \
their software and the hub gateway.
- The ML team asked for two replicas of {MODEL} on any GPU with 22 GiB, and for one of {CACHED} from weights that are \
downloaded first: model.yaml and cache.yaml beside it. They named no cluster. The operator chose:
{placed}
- The demo sent {MODEL} "Who are you?" {seconds:.0f} s after it began. The answer:

{answer}"""


def next_steps(environment: Path, home: str) -> str:
    """Return what to type next; `home` is the value of LOCALFLEET_HOME, or empty."""
    offers = "\n\n".join(
        "\n".join([f"{number}. {offer.title}", offer.text, *(f"  {command}" for command in offer.commands)])
        for number, offer in enumerate(OFFERS, start=1)
    )
    prefix = f"LOCALFLEET_HOME={shlex.quote(home)} " if home else ""
    return f"""
What to type next, in this folder

First, once in each terminal:
  . {_short(environment)}
It sets KUBECONFIG, PATH and URL. It also sets http_proxy, because the addresses of the fleet exist only in its own \
network.

{offers}

Eight more are in {TOUR}: drain a cluster, require API keys, stop the operator, and others.

When you have finished, end the page and everything else:
  kill %1
  {prefix}make demo-down
"""


def environment(variables: Mapping[str, str], programs: Path) -> str:
    """Return a shell script that sets variables, and puts the folder of the demo's programs first on PATH.

    A kubectl of the user may be too old for the fleet's API servers.
    """
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    return "".join(lines) + f'export PATH={shlex.quote(str(programs))}:"$PATH"\n'


def commands(text: str) -> Iterator[str]:
    """Yield the commands of a text, as it was printed: a line goes on after a backslash and in quotes."""
    command = ""
    for line in text.splitlines():
        if not command and not re.match(r"  +[^-\s]", line):
            continue
        command += line.strip() if command.endswith(" ") or not command else f"\n{line}"
        if command.endswith("\\"):
            command = command.removesuffix("\\")
        elif command.count("'") % 2 == 0:
            yield command
            command = ""


def _short(path: Path) -> str:
    """Return a path as people type it: below `~` where it is in the home directory."""
    home = Path.home()
    if path.is_relative_to(home):
        return f"~/{shlex.quote(str(path.relative_to(home)))}"
    return shlex.quote(str(path))
