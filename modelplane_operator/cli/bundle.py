"""What whoever helps wants to see of a hub, in one file: of texts that people write, only those on an allow-list."""

from __future__ import annotations

import io
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from kubeloop.client.kube import Kube
from kubeloop.client.subresources import logs
from kubeloop.errors import ClientError
from kubeloop.objects import Key, Manifest, entries, section
from kubeloop.resource import of
from kubeloop.types import EVENT, POD, ResourceType
from modelplane_operator import __version__
from modelplane_operator.api import KINDS, names
from modelplane_operator.cli.hub import ask
from modelplane_operator.cli.options import Context, Kubeconfig, Output, hub
from modelplane_operator.cli.output import Format, console, structured
from modelplane_operator.cli.told import HIDDEN, fields_of, told

LINES: Final = 5000  # of each log of the operator's
OURS: Final = frozenset(kind.definition.kind for kind in KINDS)
_TOLD = ("api_key", "apikey", "authorization", "credential", "password", "secret", "token")
_USER = re.compile(r"(://)[^/@\s]+@")
_QUERY = re.compile(r"([?&][^=&\s]*(?:auth|key|password|secret|sig|token)[^=&\s]*=)[^&\s\"']+", re.IGNORECASE)
_BEARER = re.compile(r"\b((?:Basic|Bearer)\s+)[-\w.~+/]{6,}=*", re.IGNORECASE)
_KNOWN = re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|AKIA|ASIA|AIza|xox[abp]-|ya29\.|eyJ)[-\w.]{12,}")
"""Tokens that are known by how they begin, wherever they are: of model hubs, providers, clouds, and JSON Web Tokens."""
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_RANDOM = re.compile(r"(?<![\w+/])(?=[\w+/]*[a-z])(?=[\w+/]*[A-Z])(?=[\w+/]*[0-9])[\w+/]{20,}={0,2}")
"""What is neither a word nor a name: letters of both cases with digits. Names of ours are in lower case."""
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SHORT: Final = 256  # characters of an annotation: others than kubectl keep copies of objects in these, too


def bundle(
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Where to; otherwise a name with the time.")] = None,
    values: Annotated[
        bool,
        typer.Option("--values", help="Also arguments, values, labels, annotations and URLs, as people wrote them."),
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Write what a support person asks for into one file: our objects, Events, the operator's logs; no Secrets."""
    now = datetime.now(UTC)
    path = file or Path(f"modelplane-{now:%Y%m%d-%H%M%S}.tar.gz")
    found = ask(hub(kubeconfig, context), partial(_collected, shown=without_secrets if values else without_values))
    with open(path, "xb", opener=_private) as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in found:
            member, data = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}"), content.encode()
            member.size, member.mtime = len(data), int(time.time())
            archive.addfile(member, io.BytesIO(data))
    if output.is_structured:
        structured("Bundle", Bundle(str(path), tuple(name for name, _ in found)), output)
        return
    console().print(
        f"{path}: {len(found)} files. {_WITH_VALUES if values else _WITHOUT_VALUES}; the operator's logs, Events and "
        "conditions are as they were written, but for what looks like a credential. Look through it before you hand it "
        "on."
    )


_WITHOUT_VALUES: Final = (
    "Of arguments, values, labels, annotations and URLs it has the names alone (--values adds them)"
)
_WITH_VALUES: Final = (
    "Values of variables and headers are left out, and of arguments and texts what looks like a secret"
)


def _private(path: str, flags: int) -> int:
    """For nobody else on the machine: it is looked through before it is handed on."""
    return os.open(path, flags, 0o600)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The document of a bundle that was written."""

    file: str
    contents: tuple[str, ...]


async def _collected(kube: Kube, shown: Callable[[Manifest], Manifest]) -> list[tuple[str, str]]:
    """Names and contents; what cannot be read says why in its place."""
    found = [("versions.txt", f"modelplane {__version__}\nKubernetes {await kube.version()}\n")]
    for kind in (*map(of, KINDS), EVENT):
        found.append((f"{kind.plural}.yaml", await _told(kube, kind, shown)))
    try:
        pods = (await kube.list(POD, namespace=names.SYSTEM_NAMESPACE)).items
    except ClientError as error:
        return [*found, ("logs/none.txt", f"{error}\n")]
    for pod in pods:
        name = pod["metadata"]["name"]
        found.append((f"pods/{name}.yaml", _text(shown({"kind": POD.kind, **pod}))))
        for container in entries(pod, "spec", "containers"):
            for previous in (False, True):
                suffix = ".previous" if previous else ""
                log = await _log(kube, Key(names.SYSTEM_NAMESPACE, name), str(container["name"]), previous=previous)
                if log or not previous:
                    found.append((f"logs/{name}.{container['name']}{suffix}.txt", log))
    return found


async def _told(kube: Kube, kind: ResourceType, shown: Callable[[Manifest], Manifest]) -> str:
    try:
        found = (await kube.list(kind)).items
        return _text([shown({"kind": kind.kind, **one}) for one in found if kind is not EVENT or _is_ours(one)])
    except ClientError as error:
        return f"# {error}\n"


def _is_ours(event: Manifest) -> bool:
    about = section(event, "involvedObject")
    return about.get("namespace") == names.SYSTEM_NAMESPACE or str(about.get("kind")) in OURS


async def _log(kube: Kube, pod: Key, container: str, *, previous: bool) -> str:
    try:
        lines = logs(kube, pod, container, follow=False, previous=previous, tail=LINES)
        return "".join([f"{_without_tokens(bytes(line).decode(errors='replace'))}\n" async for line in lines])
    except ClientError as error:
        return "" if previous else f"{error}\n"


def _text(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def without_values(manifest: Manifest) -> Manifest:
    """The object with no text that people write as they like: `told.py` says which are told."""
    return told(manifest, _fields_of(str(manifest.get("kind"))), _without_tokens)


_fields_of = cache(fields_of)


def without_secrets(manifest: Manifest) -> Manifest:
    """The object without what people write into it that may be a secret: values of variables and headers, arguments
    that are called keys or tokens, and copies of all that in metadata."""
    metadata = {name: value for name, value in section(manifest, "metadata").items() if name != "managedFields"}
    return _hidden({**manifest, "metadata": metadata})


def _hidden(value: Any, inside: str = "") -> Any:
    match value:
        case dict() if inside == "annotations":
            return {name: _annotated(str(one)) for name, one in value.items() if name != _APPLIED}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case {"name": str(), "value": _, **rest}:
            return {"name": value["name"], "value": HIDDEN, **_hidden(rest)}
        case dict():
            return {name: HIDDEN if _is_secret(name, one) else _hidden(one, name) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case list() if inside in {"args", "command"}:
            return [*_arguments(value)]  # pyright: ignore[reportUnknownArgumentType]
        case list():
            return [_hidden(one, inside) for one in value]  # pyright: ignore[reportUnknownVariableType]
        case str():
            return _without_tokens(value)
        case _:
            return value


def _is_secret(name: str, value: Any) -> bool:
    return (
        isinstance(value, str)
        and any(word in name.lower().replace("-", "_") for word in _TOLD)
        and name != "secretName"
    )


def _annotated(value: str) -> str:
    return HIDDEN if len(value) > _SHORT or value.lstrip().startswith(("{", "[")) else _without_tokens(value)


def _without_tokens(text: str) -> str:
    """A text without what is a credential by its form."""
    for form, left in (
        *((_PEM, HIDDEN), (_USER, rf"\1{HIDDEN}@"), (_QUERY, rf"\1{HIDDEN}"), (_BEARER, rf"\1{HIDDEN}")),
        *((_KNOWN, HIDDEN), (_RANDOM, HIDDEN)),
    ):
        text = form.sub(left, text)
    return text


def _arguments(given: list[Any]) -> Iterator[Any]:
    """Of one that is called a secret, its value; of a line for a shell, or JSON, all from such a word on."""
    hide = False
    for one in map(str, given):
        name, equals, _ = one.partition("=")
        called = _FLAG.fullmatch(name) and _ARGUMENT.search(name)
        if hide:
            yield HIDDEN
        elif called:
            yield f"{name}={HIDDEN}" if equals else one
        else:
            found = _ARGUMENT.search(one)
            yield _without_tokens(f"{one[: found.end()]} {HIDDEN}" if found else one)
        hide = not hide and bool(called) and not equals and one.startswith("-")


_FLAG = re.compile(r"[-\w.]+")
_ARGUMENT = re.compile("|".join(word.replace("_", "[-_]") for word in (*_TOLD, "bearer", "key")), re.IGNORECASE)
