"""Whether the webhook's configuration is the chart's: whoever changes it may have API servers send it more."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from urllib.parse import urlsplit

from kubeloop.objects import Manifest, Section, entries, section
from modelplane_operator.ask.answers.documents import QUESTION


def altered(configuration: Manifest, groups: Collection[str], host: str) -> tuple[str, ...]:
    """Return what the chart has not said there, a clause for each. `host`: by which API servers reach the webhook."""
    return tuple(clause for hook in entries(configuration, "webhooks") for clause in _of_hook(hook, groups, host))


def _of_hook(hook: Section, groups: Collection[str], host: str) -> Iterator[str]:
    name, rules = hook.get("name"), entries(hook, "rules")
    if (asked := _host(section(hook, "clientConfig"))) != host:
        yield f"webhook {name} leads to {asked or 'nowhere'}"
    foreign = {str(group) for rule in rules for group in rule.get("apiGroups") or ()} - {*groups}
    if foreign:
        listed = ", ".join(group or "the core group" for group in sorted(foreign))
        yield f"webhook {name} is sent what is written of {listed}"
    about = {str(resource) for rule in rules for resource in rule.get("resources") or ()}
    if hook.get("failurePolicy") != "Ignore" and about != {QUESTION.plural}:
        yield f"webhook {name} refuses writes while nobody answers"


def _host(client: Section) -> str:
    if url := str(client.get("url") or ""):
        return urlsplit(url).hostname or ""
    service = section(client, "service")
    return f"{service.get('name')}.{service.get('namespace')}.svc" if service else ""
