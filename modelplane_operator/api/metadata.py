"""Rules for labels and annotations that users write for what is made from their objects."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kubeloop.model import Rule
from modelplane_operator.api.bounds import LABELS

_QUALIFIED_NAME = (
    r"'^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'"
)


def _each(field: str, holds: str, message: str) -> Rule:
    """What must hold of each key `k` of a map; the refusal begins with the key that is meant."""
    return Rule(
        f"!has(self.{field}) || self.{field}.all(k, {holds})",
        message,
        field=field,
        telling=f'self.{field}.filter(k, !({holds}))[0] + ": {message}"',
    )


NO_RESERVED_LABELS = _each(
    "labels",
    "!k.startsWith('modelplane.ai/')",
    "Label keys under modelplane.ai/ are set by the operator: choose a prefix of your own, such as example.com/team.",
)
LABEL_KEYS = _each(
    "labels",
    f"k.matches({_QUALIFIED_NAME})",
    "A label key must be a name of at most 63 letters, digits, '-', '_' or '.', that begins and ends with a letter or "
    "digit, optionally after a DNS prefix and '/': for example team or example.com/team.",
)
LABEL_KEY_PREFIXES = _each(
    "labels",
    "k.split('/')[0].size() <= 253",
    "The prefix of a label key, before '/', may have at most 253 characters: shorten it.",
)
LABEL_VALUES = _each(
    "labels",
    "self.labels[k].matches('^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$')",
    "A label value must be empty, or letters, digits, '-', '_' and '.', beginning and ending with a letter or digit.",
)
ANNOTATION_KEYS = _each(
    "annotations",
    f"k.matches({_QUALIFIED_NAME})",
    "An annotation key must be a name of at most 63 letters, digits, '-', '_' or '.', that begins and ends with a "
    "letter or digit, optionally after a DNS prefix and '/': for example note or example.com/note.",
)
ANNOTATION_KEY_PREFIXES = _each(
    "annotations",
    "k.split('/')[0].size() <= 253",
    "The prefix of an annotation key, before '/', may have at most 253 characters: shorten it.",
)
LABEL_RULES = (NO_RESERVED_LABELS, LABEL_KEYS, LABEL_KEY_PREFIXES, LABEL_VALUES)

# Bounded on every side: without the limits the API server's cost estimate for the rules above is over its budget.
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=LABELS)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=8192)]], Field(max_length=LABELS)]
