"""Why a service has no endpoints: what its entries select, and what there is instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from heapq import nlargest

from kubeloop.conditions import condition
from kubeloop.objects import Manifest
from kubeloop.words import counted
from modelplane_operator.api.model_service import ModelService

NAMED = 3  # of labels, and of replicas
LENGTH = 64  # of a label, as it is compared with others
COUNTED, COMPARED = 1024, 64  # of the labels there are, of which a tenant chooses how many

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What is in the namespace of a service without endpoints."""

    endpoints: tuple[Labels, ...] = ()
    """Labels of each ModelEndpoint."""
    replicas: tuple[tuple[str, str], ...] = ()
    """ModelReplicas that would be selected, by name, and what each says of its model."""


def state(replica: Manifest) -> str:
    """What a replica says of why it has no endpoint."""
    found = condition(replica, "ModelReady")
    if found.is_true:
        return "answers, and its endpoint follows"
    return found.why or "nothing is known of it yet"


def why_none(service: ModelService, near: Neighbours | None) -> str:
    """What is selected, and what there is."""
    wanted = [entry.selector.match_labels for entry in service.spec.endpoints]
    asked = "; ".join(_pairs(labels) or "every endpoint" for labels in wanted[:NAMED])
    more = f"; and {len(wanted) - NAMED} more" if len(wanted) > NAMED else ""
    return "; ".join((f"No ModelEndpoints matched the configured selectors ({asked}{more})", *_instead(wanted, near)))


def _instead(wanted: Sequence[Labels], near: Neighbours | None) -> Iterator[str]:
    if near is None:
        return
    if near.replicas:
        told = ", ".join(f"{name} ({said})" for name, said in near.replicas[:NAMED])
        more = f", and {len(near.replicas) - NAMED} more" if len(near.replicas) > NAMED else ""
        yield f"no answer from {counted(len(near.replicas), 'ModelReplica')} with these labels: {told}{more}"
    elif near.endpoints:
        pairs = [pair for labels in wanted[:NAMED] for pair in sorted(labels.items())[:NAMED]]
        keys = {key for key, _ in pairs}
        counts = Counter((key, labels[key]) for labels in near.endpoints for key in keys & labels.keys())
        meant = [f"{key}={value}" for key, value in pairs][:NAMED]
        common = [(f"{key}={value}", count) for (key, value), count in counts.most_common(COUNTED)]
        begun = nlargest(COMPARED, common, key=lambda one: (_begin(one[0], meant), one[1]))
        nearest = sorted(begun, key=lambda one: (-_likeness(one[0], meant), -one[1], one[0]))
        told = [f"{pair} ({count})" for pair, count in nearest[:NAMED]]
        most = f", and {len(counts) - NAMED} more" if len(counts) > NAMED else ""
        lacks = f"none has the label {' or '.join(sorted(keys)[:NAMED])}: give it to those that are meant"
        named = f"{', '.join(told)}{most}: select one of these" if told else lacks
        yield f"of the {len(near.endpoints)} in this namespace: {named}"
    else:
        yield "there are none in this namespace, and those of others do not count: write a ModelDeployment here"


def _begin(pair: str, meant: Sequence[str]) -> int:
    """With how many characters a label begins as one that is asked for: what takes little, before what takes more."""
    lengths = range(LENGTH, 0, -1)
    return max((next((n for n in lengths if pair.startswith(one[:n])), 0) for one in meant), default=0)


def _likeness(pair: str, meant: Sequence[str]) -> float:
    """How much a label looks like one that is asked for: one is mistyped more often than another is meant."""
    return max((SequenceMatcher(None, pair[:LENGTH], one[:LENGTH]).quick_ratio() for one in meant), default=0.0)


def _pairs(labels: Labels) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
