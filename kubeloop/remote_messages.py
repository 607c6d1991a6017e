"""Messages of workload clusters, reworded for statuses that tenants read.

The original text may contain information of the platform team (taints, labels, addresses, accounts), or anything else.
Tenants get the reason, which is one word, and a translation of messages that are known here. Numbers and names in those
must match the format of such names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, cast

from kubeloop.conditions import Condition
from kubeloop.errors import ApiError, ClientError, InvalidName, KubeconfigError
from kubeloop.words import count_of, list_names

READ: Final = 2_000  # characters of a message that are searched
MOST: Final = 4  # translations of one message
_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,98}[A-Za-z0-9])?"
_COUNT: Final = r"(?<!\d)(?P<count>\d{1,5})"

_TRANSLATIONS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), words)
    for pattern, words in (
        # schedulers
        (rf"{_COUNT} Insufficient (?P<name>{_NAME})", "not enough {name} on {where}"),
        (
            rf"{_COUNT} node\(s\) had untolerated taint(\(s\))? \{{(?P<name>{_NAME}):",
            "taint {name} on {where}",
        ),
        (rf"{_COUNT} node\(s\) had untolerated taint(?!(\(s\))? \{{)", "a taint on {where}"),
        (
            rf"{_COUNT} node\(s\) didn't match (Pod's )?node (affinity|selector)",
            "{where} of another kind than it asks for",
        ),
        (rf"{_COUNT} node\(s\) were unschedulable", "{where} cordoned"),
        (rf"{_COUNT} (Too many pods|node\(s\) .*too many pods)", "as many pods as there may be on {where}"),
        (
            rf"{_COUNT} node\(s\) didn't (match pod (affinity|anti-affinity|topology)|satisfy)",
            "too near to, or too far from, other pods on {where}",
        ),
        (rf"{_COUNT} node\(s\) had volume node affinity conflict", "no way to its volume from {where}"),
        (
            rf"{_COUNT} (node\(s\) )?cannot allocate all claims",
            "not the devices that it claims on {where}",
        ),
        ("unbound immediate PersistentVolumeClaims", "a volume of it is not bound"),
        # admission
        (rf"exceeded quota: (?P<name>{_NAME})", "exceeded quota: {name}"),
        ("exceeded quota(?!: )", "exceeded quota"),
        ("violates PodSecurity", "the Pod Security level of its namespace there does not allow it"),
        ("ValidatingAdmissionPolicy", "a policy of the cluster refuses it"),
        ("admission webhook .* denied", "a webhook of the cluster refuses it"),
        ("failed calling webhook", "a webhook of the cluster does not answer"),
        (
            rf'cannot (?P<verb>[a-z]{{1,20}}) resource "(?P<name>{_NAME})"',
            "the operator's account there may not {verb} {name}",
        ),
        ("because it is being terminated", "its namespace there is being deleted"),
        ("provisions the pvc must support resize", "the storageclass that provisions the pvc must support resize"),
        # kubelets and registries
        (rf'secret "(?P<name>{_NAME})" not found', "Secret {name} is not there"),
        (rf'configmap "(?P<name>{_NAME})" not found', "ConfigMap {name} is not there"),
        (
            rf"couldn't find key (?P<name>{_NAME}) in (?P<kind>Secret|ConfigMap)",
            "its {kind} has no key {name}",
        ),
        ("executable file not found|no such file or directory", "its image does not have the command"),
        ("manifest unknown|manifest for .* not found|pulling image.* not found", "the registry has no such image"),
        (
            "unauthorized|authentication required|pull access denied|403 Forbidden",
            "the registry refuses it without other credentials",
        ),
        ("no such host|dial tcp|i/o timeout|connection refused|x509", "the registry is not reached"),
        (
            "low on resource: (?P<name>memory|ephemeral-storage|inodes|nodefs|imagefs|pids)",
            "its node was low on {name}",
        ),
        ("imminent node shutdown", "its node was shut down"),
    )
)


_DNS_NAME: Final = r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
_FORMS: Final = {
    **dict.fromkeys(("name", "namespace", "nodeName"), re.compile(_DNS_NAME)),
    **dict.fromkeys(("startedAt", "lastTransitionTime"), re.compile(_TIME)),
    "path": re.compile(r"/[A-Za-z0-9/._~%+:@,=-]{0,199}"),  # nothing that a shell obeys
    "port": re.compile(r"[a-z0-9-]{1,15}"),
}
"""The formats of fields whose text is shown unchanged, also in commands for people to paste."""


def is_formed(field: str, value: object) -> bool:
    """True if the value has the format that Kubernetes allows for the field. For other fields, any value but None."""
    return bool(_FORMS[field].fullmatch(value)) if field in _FORMS and isinstance(value, str) else value is not None


def translate_message(message: str) -> str:
    """Return the translations of a cluster's message; empty if nothing in it is known."""
    translations = list[str]()
    for pattern, template in _TRANSLATIONS:
        if match := pattern.search(message[:READ]):
            texts = {name: text or "" for name, text in match.groupdict().items()}
            where = count_of(int(texts["count"]), "node") if texts.get("count") else ""
            translations.append(template.format(where=where, **texts))
    return ", ".join([*dict.fromkeys(translations)][:MOST])


def sanitize(reason: object, message: object = "") -> str:
    """Return a reason with the translation of its message. A reason that is not one word is left out."""
    word = reason if isinstance(reason, str) and re.fullmatch("[A-Za-z]{1,63}", reason) else ""
    return ": ".join(filter(None, (word, translate_message(message if isinstance(message, str) else ""))))


def describe_condition(condition: Condition) -> str:
    """Return the reason of a condition and the translation of its message."""
    return sanitize(condition.reason, condition.message) or "no reason given"


def describe_rejection(error: ClientError) -> str:
    """Return the message for a cluster's error. Errors that come from the operator already have its own words."""
    if isinstance(error, KubeconfigError):
        return "its kubeconfig cannot be used"
    if error.is_own_message or not isinstance(error, ApiError) or isinstance(error, InvalidName):
        return str(error)
    return "; ".join(filter(None, (sanitize(error.reason, str(error)), list_names(_invalid_fields(error.details)))))


def _invalid_fields(details: object) -> Iterator[str]:
    """Yield the invalid fields that an API server names."""
    causes = cast(dict[str, object], details).get("causes") if isinstance(details, dict) else None
    for cause in cast(list[object], causes)[:MOST] if isinstance(causes, list) else ():
        field = cast(dict[str, object], cause).get("field") if isinstance(cause, dict) else None
        if isinstance(field, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9.\[\]-]{0,199}", field):
            yield field
