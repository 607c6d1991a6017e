"""The command `modelplane render`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
import yaml
from pydantic import ValidationError

from kubeloop.invalid import describe_invalid
from kubeloop.objects import Manifest
from kubeloop.types import HUB
from kubeloop.words import legible
from modelplane_operator.api import KINDS, Kind
from modelplane_operator.cli.hub import ask, snapshot
from modelplane_operator.cli.options import Context, Kubeconfig, hub, load_documents
from modelplane_operator.cli.output import Exit, FailedError
from modelplane_operator.cli.rendering import Rendered, Renderer, plain

NAMESPACE: Final = "default"
"""Namespace of objects that name none."""


def render(
    files: Annotated[
        list[Path],
        typer.Option("-f", "--filename", help="Manifests to render, once or several times; - reads standard input."),
    ],
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="The namespace of manifests that name none.")
    ] = NAMESPACE,
    fleet: Annotated[
        bool, typer.Option("--fleet", help="Place models on the clusters of the hub. Without it, no hub is read.")
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the objects that manifests would become, on the hub and on which cluster. Nothing is written.

    The objects carry no owner: applied by hand, they are yours, and the operator leaves them alone.
    """
    documents = [document for file in files for document in read_documents(file, namespace)]
    current = ask(hub(kubeconfig, context), snapshot) if fleet else None
    complete = True
    printed: set[tuple[str, ...]] = set()
    try:
        for rendered in Renderer(documents, current).render():
            print_section(rendered, printed)
            complete &= rendered.complete
    except (ValueError, KeyError) as error:  # of rules that only the API server has
        message = f"the API server would refuse one of these objects: {_in_a_line(error)}"
        raise FailedError(f"{message}. kubectl apply --dry-run=server -f FILE has its reason") from None
    raise typer.Exit(Exit.YES if complete else Exit.NO)


def read_documents(file: Path, namespace: str) -> list[Any]:
    """Return the objects of a file. Objects of other kinds are left out. Raise BadParameter for one that is invalid."""
    documents = [_parse(file, cast("Manifest", document), namespace) for document in load_documents(file)]
    if not (parsed := [document for document in documents if document is not None]):
        raise typer.BadParameter(f"{file} has no object of a kind of Modelplane")
    return parsed


def _parse(file: Path, document: Manifest, namespace: str) -> Any:
    """Return an object of a file; None for one of another kind."""
    definitions: dict[tuple[str, str], Kind] = {
        (kind.definition.api_version, kind.definition.kind): kind for kind in KINDS
    }
    kind = definitions.get((str(document.get("apiVersion")), str(document.get("kind"))))
    if kind is None:
        return None
    value: object = document.get("metadata") or {}
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{file}: {kind.definition.kind}: metadata: it is no map")
    metadata = cast(Manifest, value)
    name = f"{file}: {kind.definition.kind} {metadata.get('name')}"
    scope: Manifest = (
        {"namespace": metadata.get("namespace") or namespace} if kind.definition.scope == "Namespaced" else {}
    )
    try:
        return kind.parse_bounded({**document, "metadata": {**metadata, **scope}})
    except ValidationError as error:
        raise typer.BadParameter(_in_a_line(f"{name}: {describe_invalid(error)}")) from None
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(_in_a_line(f"{name}: {error}")) from None


def print_section(rendered: Rendered, printed: set[tuple[str, ...]]) -> None:
    """Print the objects of one source at one place, without those that were printed for it before."""
    place = "on the hub" if rendered.place == HUB else f"on cluster {rendered.place}"
    out = sys.stdout.write
    out(f"# {_in_a_line(rendered.source)}, {_in_a_line(place)}:\n")
    for note in rendered.notes:
        out(f"# {_in_a_line(note)}\n")
    for manifest in _list_unprinted(rendered, printed):
        text = _dump(manifest, readable=True)
        out(f"---\n{text if legible(text) == text else _dump(manifest, readable=False)}")


def _dump(manifest: Manifest, *, readable: bool) -> str:
    """Return an object as YAML; other letters than ASCII are escaped unless `readable`."""
    return yaml.dump(plain(manifest), Dumper=_Readable, sort_keys=False, width=120, allow_unicode=readable)


def _in_a_line(text: object) -> str:
    """Return a text as one line: a second one would be no comment, but an object to those who apply the output."""
    return " ".join(legible(str(text)).split())


def _list_unprinted(rendered: Rendered, printed: set[tuple[str, ...]]) -> Iterable[Manifest]:
    """Yield the objects that were not printed for this place; replicas in one namespace share some."""
    for manifest in rendered.objects:
        metadata = manifest["metadata"]
        identity = (rendered.place, manifest["kind"], metadata.get("namespace") or "", metadata["name"])
        if identity not in printed:
            printed.add(identity)
            yield manifest


class _Readable(yaml.SafeDumper):
    """Repeats shared parts, and writes texts of several lines as blocks."""

    def ignore_aliases(self, data: object) -> bool:
        """Return True: anchors help no reader."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return cast(Any, dumper).represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _represent_text)
