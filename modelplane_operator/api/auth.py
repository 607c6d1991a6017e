"""Who may ask a model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.model import Model, Rule, list_map
from modelplane_operator.api.bounds import ObjectName


class KeySecret(Model):
    """A Secret with API keys, in the namespace of the ModelService."""

    name: ObjectName
    """Name of the Secret. Each of its keys is the name of a client, and the value is that client's API key."""


class APIKeys(Model):
    """Keys that clients send as `Authorization: Bearer KEY`, as those for OpenAI's API do, or as `x-api-key: KEY`, as
    those for Anthropic's do."""

    secret_refs: Annotated[tuple[KeySecret, ...], Field(min_length=1, max_length=8), list_map("name")]
    """Secrets in the namespace of the ModelService; a key of any of them is accepted. To change a key, add the new one,
    and remove the old one when no client sends it any more. Changes take effect within two seconds."""


class Auth(Model):
    """Who may ask a model."""

    rules: ClassVar = (
        Rule(
            "(self.mode == 'APIKeys') == has(self.apiKeys)",
            "Mode APIKeys needs Secrets with keys, mode None takes none: write `apiKeys: {secretRefs: [{name: ...}]}` "
            "or `mode: None`.",
        ),
    )

    mode: Literal["APIKeys", "None"] = "APIKeys"
    """`APIKeys`: requests without one of the keys get 401. `None`: everyone who reaches the hub gateway may call."""
    api_keys: APIKeys | None = None
    """Where the keys are."""
