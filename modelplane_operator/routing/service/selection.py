"""Explain why a service has no endpoints: its selectors, and the labels or replicas in its namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from heapq import nlargest

from kubeloop.conditions import condition
from kubeloop.objects import Manifest
from kubeloop.words import count_of
from modelplane_operator.api.model_service import ModelService

MAX_NAMES = 3  # the number of labels or replicas in a message
LENGTH = 64  # characters of a label that are compared
COUNTED, COMPARED = 1024, 64  # limits for labels, whose number a tenant chooses

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The objects in the namespace of a service without endpoints."""

    endpoints: tuple[Labels, ...] = ()
    """The labels of each ModelEndpoint."""
    replicas: tuple[tuple[str, str], ...] = ()
    """ModelReplicas with matching labels: name and the state of the model."""


def state(replica: Manifest) -> str:
    """Return why a replica has no endpoint, as it reports it."""
    model_ready = condition(replica, "ModelReady")
    if model_ready.is_true:
        return "answers; its endpoint is starting"
    return model_ready.why or "starting (waiting for: its cluster)"


def explain_no_endpoints(service: ModelService, near: Neighbours | None) -> str:
    """Return the message with the selectors, and with the nearest alternatives in the namespace."""
    selectors = [entry.selector.match_labels for entry in service.spec.endpoints]
    selected = "; ".join(
        ",".join(f"{name}={value}" for name, value in sorted(labels.items())) or "every endpoint"
        for labels in selectors[:MAX_NAMES]
    )
    more = f"; and {len(selectors) - MAX_NAMES} more" if len(selectors) > MAX_NAMES else ""
    return "; ".join(
        (
            f"No ModelEndpoints matched the configured selectors ({selected}{more})",
            *_describe_alternatives(selectors, near),
        )
    )


def _describe_alternatives(selectors: Sequence[Labels], surroundings: Neighbours | None) -> Iterator[str]:
    """Yield the replicas that do not respond yet, the most similar labels, or that there are no endpoints."""
    if surroundings is None:
        return
    if surroundings.replicas:
        examples = ", ".join(f"{name} ({replica_state})" for name, replica_state in surroundings.replicas[:MAX_NAMES])
        more = f", and {len(surroundings.replicas) - MAX_NAMES} more" if len(surroundings.replicas) > MAX_NAMES else ""
        yield (
            f"no answer from {count_of(len(surroundings.replicas), 'ModelReplica')} with these labels: {examples}{more}"
        )
    elif surroundings.endpoints:
        pairs = [pair for labels in selectors[:MAX_NAMES] for pair in sorted(labels.items())[:MAX_NAMES]]
        keys = {key for key, _ in pairs}
        counts = Counter((key, labels[key]) for labels in surroundings.endpoints for key in keys & labels.keys())
        requested = [f"{key}={value}" for key, value in pairs][:MAX_NAMES]
        common = [(f"{key}={value}", count) for (key, value), count in counts.most_common(COUNTED)]
        candidates = nlargest(COMPARED, common, key=lambda item: (_measure_common_prefix(item[0], requested), item[1]))
        nearest = sorted(candidates, key=lambda item: (-_measure_similarity(item[0], requested), -item[1], item[0]))
        examples = [f"{pair} ({count})" for pair, count in nearest[:MAX_NAMES]]
        suffix = f", and {len(counts) - MAX_NAMES} more" if len(counts) > MAX_NAMES else ""
        missing_label = (
            f"none has the label {' or '.join(sorted(keys)[:MAX_NAMES])}: add it to the endpoints that you mean"
        )
        suggestion = f"{', '.join(examples)}{suffix}: select one of these" if examples else missing_label
        yield f"of the {len(surroundings.endpoints)} in this namespace: {suggestion}"
    else:
        yield (
            "this namespace has no ModelEndpoints, and those of other namespaces do not count: create a ModelDeployment"
            " here"
        )


def _measure_common_prefix(pair: str, requested: Sequence[str]) -> int:
    """Return the length of the longest common prefix with a requested label: a cheap filter before similarity."""
    lengths = range(LENGTH, 0, -1)
    return max((next((n for n in lengths if pair.startswith(label[:n])), 0) for label in requested), default=0)


def _measure_similarity(pair: str, requested: Sequence[str]) -> float:
    """Return the highest similarity with a requested label, as a typing error is the most likely cause."""
    return max((SequenceMatcher(None, pair[:LENGTH], label[:LENGTH]).quick_ratio() for label in requested), default=0.0)
