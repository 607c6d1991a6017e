"""Upgrades the CustomResourceDefinitions in the `crds/` of a chart, which Helm installs once and never touches again.

Definitions of other owners stay as they are, and none loses a version that it serves: objects may be stored in it.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import structlog
import yaml

from kubeloop.client.kube import Kube
from kubeloop.client.limits import MIB
from kubeloop.errors import ClientError, Forbidden
from kubeloop.naming import names
from kubeloop.objects import Manifest, entries, key_of
from kubeloop.ownership import add_content_hash, was_applied
from kubeloop.types import CUSTOM_RESOURCE_DEFINITION

MAX_TOTAL: Final = 32 * MIB
"""Bytes of all definitions of a chart."""
_HELM: Final = "helm"
"""Helm's name in the managed fields of what it creates."""
_FILE: Final = re.compile(r"[^/]+/((?:charts/[^/]+/)*)crds/.+\.ya?ml")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ChartDefinition:
    """A CustomResourceDefinition of a chart."""

    manifest: Manifest
    subchart: str = ""
    """The path of the chart within the chart that has it, which values may have turned off; empty for the chart."""


def read_chart_definitions(package: Path) -> tuple[ChartDefinition, ...]:
    """Return the definitions in the `crds/` of a chart's archive; raises ClientError if it cannot be read."""
    try:
        with tarfile.open(package) as archive:
            return tuple(_read(archive))
    except (tarfile.TarError, OSError, EOFError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ClientError(f"the definitions of the chart cannot be read: {type(error).__name__}") from error


def _read(archive: tarfile.TarFile) -> Iterator[ChartDefinition]:
    """Yield the definitions in an archive."""
    total = 0
    for member in archive:
        path = _FILE.fullmatch(member.name)
        content = archive.extractfile(member) if path and member.isfile() else None
        if path is None or content is None:
            continue
        total += member.size
        if total > MAX_TOTAL:
            raise ClientError(f"the definitions of the chart have more than {MAX_TOTAL // MIB} MiB")
        for document in yaml.load_all(content.read().decode(), Loader=yaml.CSafeLoader):
            if isinstance(document, dict) and cast(Manifest, document).get("kind") == CUSTOM_RESOURCE_DEFINITION.kind:
                manifest = cast(Manifest, document)
                fields = {name: manifest[name] for name in ("apiVersion", "kind", "metadata", "spec")}
                yield ChartDefinition(fields, path[1])


async def upgrade_definitions(
    kube: Kube, definitions: Sequence[ChartDefinition], may_write: Callable[[], None]
) -> None:
    """Apply the definitions of a chart that are missing or outdated on a cluster; raises ClientError."""
    existing = {
        key: await kube.find(CUSTOM_RESOURCE_DEFINITION, key)
        for key in (key_of(definition.manifest) for definition in definitions)
    }
    # Helm has installed the definitions of a chart within the chart only if values have left it on.
    enabled = {"", *(item.subchart for item in definitions if existing[key_of(item.manifest)] is not None)}
    for definition in definitions:
        manifest = definition.manifest
        live = existing[key_of(manifest)]
        if definition.subchart not in enabled:
            continue
        if live is not None and was_applied(live, manifest):
            continue
        reason = find_keeper(live, manifest) if live is not None else ""
        if not reason:
            may_write()
            try:
                await kube.apply(add_content_hash(manifest))
            except Forbidden:
                reason = "the operator may not change it"
        log.info("definition kept" if reason else "definition applied", name=str(key_of(manifest)), reason=reason)


def find_keeper(live: Manifest, definition: Manifest) -> str:
    """Return why a live definition stays as it is; empty if the chart's replaces it."""
    managers = {
        str(entry.get("manager"))
        for entry in entries(live, "metadata", "managedFields")
        if not entry.get("subresource") and "f:spec" in (entry.get("fieldsV1") or {})
    }
    if foreign := managers - {_HELM, names().field_manager}:
        return f"{', '.join(sorted(foreign))} wrote it"
    served = {version["name"] for version in entries(live, "spec", "versions") if version.get("served")}
    desired = {version["name"] for version in entries(definition, "spec", "versions")}
    if missing := served - desired:
        return f"the chart lacks version {', '.join(sorted(missing))}"
    return ""
