"""Read the objects of a hydration: its progress, its result, and what went wrong.

`cached_cluster` decides on the basis of these values. Everything here comes from a workload cluster, whose tenants
can change it: numbers, texts and hashes are checked for their form and limited before they reach a status.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from kubeloop.condition_types import WARNING
from kubeloop.conditions import condition
from kubeloop.objects import Manifest, Section, annotations_of, entries, is_terminating, key_of, section
from kubeloop.remote_messages import is_formed, sanitize
from kubeloop.words import legible
from modelplane_operator.api import labels
from modelplane_operator.api.model_cache import CacheProgress
from modelplane_operator.models.replica.plan.symptoms import object_in, objects_in, shorten, summarize, symptoms

MOST: Final = 1 << 53
"""Largest count that is accepted from a cluster."""
FARTHEST: Final = 10**7  # a third of a year
"""Longest estimate that is shown, in seconds."""
MAX_TEXT: Final = 600
"""Longest text from a cluster that is shown, in characters."""
UNBEGUN: Final = timedelta(minutes=2)  # quotas can prevent that
"""Time in which a Job must have a pod."""
SILENT: Final = timedelta(minutes=10)  # it reports four times a minute
"""Time in which a pod must report progress."""
SPOKEN: Final = frozenset({0, 1, 3})  # with others, the message is the kubelet's
"""Exit codes with which the hydrator writes a termination message."""
DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")
"""Form of the hash over the list of verified files."""
RESOLVED: Final = re.compile(
    r"[0-9a-f]{40}|sha256:[0-9a-f]{64}"
)  # a commit, or a hash for sources other than Hugging Face
"""Form of a revision."""


@dataclass(frozen=True, slots=True)
class Reported:
    """Values that the hydrator reports. They are shown and not trusted."""

    progress: CacheProgress | None = None
    """Files and bytes so far; None before the total is known."""
    revision: str = ""
    """Revision that the source resolved to."""
    digest: str = ""
    """Hash over the list of verified files; "" until all are complete."""
    changed: int = 0
    """Number of files whose content differed and that were fetched again."""
    unlisted: int = 0
    """Number of files in the volume that the source does not list."""


# Cut objects: a cluster may return anything ---------------------------------------------------------------------------


def prune_claim(claim: Manifest) -> Manifest:
    """Return the fields of a PersistentVolumeClaim that the plan reads."""
    spec = object_in(claim.get("spec"))
    requested = shorten(object_in(object_in(spec.get("resources")).get("requests")), ("storage",))
    return {
        "metadata": _metadata(claim),
        "spec": {
            **shorten(spec, ("storageClassName",)),
            **({"resources": {"requests": requested}} if requested else {}),
        },
        "status": shorten(object_in(claim.get("status")), ("phase",)),
    }


def prune_job(job: Manifest) -> Manifest:
    """Return the fields of a Job that the plan reads. Its spec is the operator's own and immutable."""
    pruned = (shorten(item, _CONDITION) for item in objects_in(object_in(job.get("status")).get("conditions")))
    conditions = [item for item in pruned if item.get("type") in _ENDS]
    return {"metadata": _metadata(job), "status": {"conditions": conditions}}


def _metadata(live: Manifest) -> Manifest:
    """Return the metadata that the plan reads, with only the operator's annotations."""
    metadata = section(live, "metadata")
    own_annotations = {
        name: text[:MAX_TEXT] for name, text in annotations_of(live).items() if name.startswith(labels.PREFIX)
    }
    fields = {name: metadata[name] for name in _METADATA if is_formed(name, metadata.get(name))}
    return {**fields, **shorten(metadata, ("creationTimestamp",)), "annotations": own_annotations}


_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "labels", "deletionTimestamp")
"""Fields of metadata that are retained."""
_CONDITION: Final = ("type", "status", "reason", "message")
"""Fields of a Job's condition that are retained."""
_ENDS: Final = frozenset({"Complete", "Failed"})
"""Types of the conditions of a finished Job."""


# Read objects ---------------------------------------------------------------------------------------------------------


def job_succeeded(job: Manifest) -> bool:
    """True if a Job has completed."""
    return condition(job, "Complete").is_true


def has_failed(job: Manifest) -> bool:
    """True if a Job has failed for good."""
    return condition(job, "Failed").is_true


def validate_revision(revision: Any) -> str:
    """Return a revision if it has the form of one, else ""."""
    return revision if isinstance(revision, str) and RESOLVED.fullmatch(revision) else ""


def attempt(job: Manifest) -> int:
    """Return the number of a Job's attempt, counted from 1."""
    text = annotations_of(job).get(labels.ATTEMPT, "")
    return int(text) if re.fullmatch("[1-9][0-9]{0,6}", text) else 1


def read_report(job: Manifest, pods: Iterable[Manifest]) -> Reported:
    """Return the report of the pod that has succeeded, or else the one in the Job's annotation."""
    texts = [_exit_message(pod) for pod in pods if section(pod, "status").get("phase") == "Succeeded"]
    for text in (*texts, _progress_annotation(job)):
        if report := _parse_json(text):
            return _parse_report(report)
    return Reported()


def find_problem(pods: Sequence[Manifest]) -> str:
    """Return what prevents the pods of a Job from succeeding; "" if nothing."""
    alive = [pod for pod in pods if section(pod, "status").get("phase") in {"Pending", "Running"}]
    failed = [pod for pod in pods if section(pod, "status").get("phase") == "Failed"]
    failed.sort(key=lambda pod: (_latest_start(pod, "terminated"), pod["metadata"]["name"]))  # the latest last
    messages = [message for pod in failed if not is_terminating(pod) and (message := _exit_message(pod))]
    last_failure = f"tried again after: {messages[-1]}" if messages and alive else messages[-1] if messages else ""
    return legible("; ".join(filter(None, (last_failure, summarize(symptoms(alive)) if alive else "")))[:MAX_TEXT])


def is_failing(pods: Iterable[Manifest]) -> bool:
    """True if a pod of a Job needs a person's help to go on."""
    alive = (pod for pod in pods if section(pod, "status").get("phase") in {"Pending", "Running"})
    return any(symptom.reason.severity == WARNING for symptom in symptoms(alive))


def silence(job: Manifest, pods: Sequence[Manifest], now: datetime) -> tuple[str, datetime | None]:
    """Return a message if a Job makes no progress without a reason, or else the time when it would count as silent."""
    key, running = key_of(job), [pod for pod in pods if section(pod, "status").get("phase") == "Running"]
    if pods:
        times = [_latest_start(pod, "running") for pod in running] + [
            str(_parse_json(_progress_annotation(job)).get("at"))
        ] * bool(running)
        last_sign = max((moment for text in times if (moment := _parse_time(text))), default=None)
        silent_at = last_sign + SILENT if last_sign else None
        message = (
            f"the hydrator reports no progress: see `kubectl logs -n {key.namespace} job/{key.name}` on the cluster"
        )
    else:
        created_at = _parse_time(job["metadata"].get("creationTimestamp") or "")
        silent_at = created_at + UNBEGUN if created_at else None
        command = f"`kubectl describe job -n {key.namespace} {key.name}` on the cluster"
        message = f"the Job has no pod: {command} says why; it may be a quota"
    return (message, None) if silent_at and silent_at <= now else ("", silent_at)


def _progress_annotation(job: Manifest) -> str:
    """Return the progress that the hydrator has stored on its Job."""
    return annotations_of(job).get(labels.PROGRESS, "")


def _parse_time(text: str) -> datetime | None:
    """Return a time in UTC, or None if the text is not one."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _latest_start(pod: Manifest, state: str) -> str:
    """Return when the last of a pod's containers in a state started, as text."""
    states = (section(status, "state", state) for status in entries(pod, "status", "containerStatuses"))
    return max((str(status.get("startedAt") or "") for status in states), default="")


def _exit_message(pod: Manifest) -> str:
    """Return the termination message of a pod's container, or how it ended."""
    for container in entries(pod, "status", "containerStatuses"):
        if terminated := section(container, "state", "terminated"):
            code, reason = terminated.get("exitCode"), sanitize(terminated.get("reason"))
            if code in SPOKEN and reason in {"", "Error", "Completed"} and terminated.get("message"):
                return str(terminated["message"]).strip()[:MAX_TEXT]
            return f"exit code {code}{f' ({reason})' if reason and reason != 'Error' else ''}"
    return sanitize(section(pod, "status").get("reason"), section(pod, "status").get("message"))


def _parse_json(text: str) -> Mapping[str, Any]:
    """Return the JSON object in a text; empty if it has none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast(Section, value) if isinstance(value, dict) else {}


def _parse_report(data: Mapping[str, Any]) -> Reported:
    """Return a report from untrusted JSON; values with a wrong type or range are left out."""

    def count(name: str) -> int | None:
        number = data.get(name)
        return number if type(number) is int and 0 <= number <= MOST else None

    received, total = count("bytes"), count("totalBytes")
    progress = CacheProgress(
        files=count("files"),
        total_files=count("totalFiles"),
        bytes=received,
        total_bytes=total,
        estimated_completion=_estimate_completion(
            data.get("at"), (total or 0) - (received or 0), count("bytesPerSecond") or 0
        ),
    )
    digest = data.get("digest")
    return Reported(
        progress if total else None,
        validate_revision(data.get("revision")),
        digest if isinstance(digest, str) and DIGEST.fullmatch(digest) else "",
        count("changed") or 0,
        count("unlisted") or 0,
    )


def _estimate_completion(reported_at: Any, remaining: int, rate: int) -> datetime | None:
    """Return the estimated time of completion, to the minute."""
    if remaining <= 0 or rate <= 0 or remaining / rate > FARTHEST or not isinstance(reported_at, str):
        return None
    start = _parse_time(reported_at)
    return (start + timedelta(seconds=remaining / rate)).replace(second=0, microsecond=0) if start else None
