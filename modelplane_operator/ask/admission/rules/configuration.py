"""Detect changes to the webhook's configuration that the chart did not make and that could send the operator more."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from urllib.parse import urlsplit

from kubeloop.objects import Manifest, Section, entries, section
from modelplane_operator.ask.answers.documents import QUESTION


def find_differences(configuration: Manifest, groups: Collection[str], host: str) -> tuple[str, ...]:
    """Return a clause for each difference from the chart.

    `host` is the name by which API servers reach the webhook.
    """
    return tuple(clause for hook in entries(configuration, "webhooks") for clause in _check_hook(hook, groups, host))


def _check_hook(hook: Section, groups: Collection[str], host: str) -> Iterator[str]:
    """Yield the differences of one hook."""
    name, rules = hook.get("name"), entries(hook, "rules")
    if (actual_host := _find_host(section(hook, "clientConfig"))) != host:
        yield f"webhook {name} calls {actual_host or 'no host'}"
    foreign = {str(group) for rule in rules for group in rule.get("apiGroups") or ()} - {*groups}
    if foreign:
        groups_text = ", ".join(group or "the core group" for group in sorted(foreign))
        yield f"webhook {name} also receives objects of {groups_text}"
    resources = {str(resource) for rule in rules for resource in rule.get("resources") or ()}
    if hook.get("failurePolicy") != "Ignore" and resources != {QUESTION.plural}:
        yield f"webhook {name} blocks writes while the operator does not answer"


def _find_host(client: Section) -> str:
    """Return the host that a `clientConfig` leads to."""
    if url := str(client.get("url") or ""):
        return urlsplit(url).hostname or ""
    service = section(client, "service")
    return f"{service.get('name')}.{service.get('namespace')}.svc" if service else ""
