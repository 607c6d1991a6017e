"""Collect what support needs to see of a hub in one file. Free text is included only where an allow-list names it.

The command reads the operator's objects, their Events and the operator's own pods and logs; it never reads Secrets.
`redaction.py` has the allow-list that applies by default. With `--values`, the texts are included, and this module
hides those that look like credentials.
"""

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
from kubeloop.types import EVENT, POD
from modelplane_operator import __version__
from modelplane_operator.api import KINDS, names
from modelplane_operator.cli.hub import ask
from modelplane_operator.cli.options import Context, Kubeconfig, Output, hub
from modelplane_operator.cli.output import Format, console, print_structured
from modelplane_operator.cli.redaction import HIDDEN, fields_of, redact

LINES: Final = 5000  # lines of each of the operator's logs
OWN_KINDS: Final = frozenset(kind.definition.kind for kind in KINDS)
_SECRET_NAMES = ("api_key", "apikey", "authorization", "credential", "password", "secret", "token")
"""Parts of names of fields and flags whose values are hidden."""
_USER = re.compile(r"(://)[^/@\s]+@")
"""User and password in a URL."""
_QUERY = re.compile(r"([?&][^=&\s]*(?:auth|key|password|secret|sig|token)[^=&\s]*=)[^&\s\"']+", re.IGNORECASE)
"""Parameters of a URL that sign or authorize a request, such as those of a presigned address."""
_BEARER = re.compile(r"\b((?:Basic|Bearer)\s+)[-\w.~+/]{6,}=*", re.IGNORECASE)
"""Value of an Authorization header."""
_TOKEN_PREFIX = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|AKIA|ASIA|AIza|xox[abp]-|ya29\.|eyJ)[-\w.]{12,}"
)
"""Prefixes of well-known tokens, anywhere in a text: model hubs, providers, clouds, and JSON Web Tokens."""
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
"""Private key, also one that is cut off before its last line."""
_RANDOM = re.compile(r"(?<![\w+/])(?=[\w+/]*[a-z])(?=[\w+/]*[A-Z])(?=[\w+/]*[0-9])[\w+/]{20,}={0,2}")
"""Random text: letters of both cases with digits. The operator's own names are in lower case."""
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""Annotation with a copy of the object as it was applied, including the values that the copy in `spec` hides."""
_SHORT: Final = (
    256  # maximum characters of an annotation: like kubectl, other tools keep copies of objects in annotations
)


def bundle(
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="File to write; default: a name with the time.")
    ] = None,
    values: Annotated[
        bool,
        typer.Option("--values", help="Include arguments, values, labels, annotations and URLs that people wrote."),
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Write one file for support: Modelplane objects, their Events and the operator's logs, without Secrets."""
    now = datetime.now(UTC)
    path = file or Path(f"modelplane-{now:%Y%m%d-%H%M%S}.tar.gz")
    files = ask(hub(kubeconfig, context), partial(_collect, redact=without_secrets if values else without_values))
    # Mode "x" fails for an existing file, so that no earlier bundle is overwritten.
    with open(path, "xb", opener=_open_private) as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files:
            member, data = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}"), content.encode()
            member.size, member.mtime = len(data), int(time.time())
            archive.addfile(member, io.BytesIO(data))
    if output.is_structured:
        print_structured("Bundle", Bundle(str(path), tuple(name for name, _ in files)), output)
        return
    console().print(
        f"{path}: {len(files)} files. {_WITH_VALUES if values else _WITHOUT_VALUES}; the operator's logs, Events and "
        "conditions are as they were written, but for what looks like a credential. Look through it before you hand it "
        "on."
    )


_WITHOUT_VALUES: Final = (
    "Of arguments, values, labels, annotations and URLs it has the names alone (--values adds them)"
)
_WITH_VALUES: Final = (
    "Values of variables and headers are left out, and of arguments and texts what looks like a secret"
)


def _open_private(path: str, flags: int) -> int:
    """Open a file that only the user can read, since it is reviewed before it is passed on."""
    return os.open(path, flags, 0o600)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The result of the command, as a document."""

    file: str
    contents: tuple[str, ...]
    """Names of the files in the archive, without its top folder."""


async def _collect(kube: Kube, redact: Callable[[Manifest], Manifest]) -> list[tuple[str, str]]:
    """Return names and contents. An object that cannot be read is replaced by the error."""
    contents = [("versions.txt", f"modelplane {__version__}\nKubernetes {await kube.version()}\n")]
    for kind in (*map(of, KINDS), EVENT):
        try:
            # The items of a list may lack `kind`, by which the allow-list is chosen.
            items = (await kube.list(kind)).items
            content = _to_yaml(
                [redact({"kind": kind.kind, **item}) for item in items if kind is not EVENT or _is_own_event(item)]
            )
        except ClientError as error:
            content = f"# {error}\n"
        contents.append((f"{kind.plural}.yaml", content))
    try:
        pods = (await kube.list(POD, namespace=names.SYSTEM_NAMESPACE)).items
    except ClientError as error:
        return [*contents, ("logs/none.txt", f"{error}\n")]
    for pod in pods:
        name = pod["metadata"]["name"]
        contents.append((f"pods/{name}.yaml", _to_yaml(redact({"kind": POD.kind, **pod}))))
        for container in entries(pod, "spec", "containers"):
            # A container that never restarted has no previous log, which is no error worth a file.
            for previous in (False, True):
                suffix = ".previous" if previous else ""
                log = await _read_log(
                    kube, Key(names.SYSTEM_NAMESPACE, name), str(container["name"]), previous=previous
                )
                if log or not previous:
                    contents.append((f"logs/{name}.{container['name']}{suffix}.txt", log))
    return contents


def _is_own_event(event: Manifest) -> bool:
    """True if the Event is about the operator's namespace or about an object of its kinds."""
    involved = section(event, "involvedObject")
    return involved.get("namespace") == names.SYSTEM_NAMESPACE or str(involved.get("kind")) in OWN_KINDS


async def _read_log(kube: Kube, pod: Key, container: str, *, previous: bool) -> str:
    """Return the lines of a container's log without tokens, or the error."""
    try:
        lines = logs(kube, pod, container, follow=False, previous=previous, tail=LINES)
        return "".join([f"{_without_tokens(bytes(line).decode(errors='replace'))}\n" async for line in lines])
    except ClientError as error:
        return "" if previous else f"{error}\n"


def _to_yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def without_values(manifest: Manifest) -> Manifest:
    """Return the object without free text. `redaction.py` defines the fields that are kept."""
    return redact(manifest, _fields_of(str(manifest.get("kind"))), _without_tokens)


_fields_of = cache(fields_of)


def without_secrets(manifest: Manifest) -> Manifest:
    """Return the object without values that may be secrets: values of variables and headers, arguments with names of
    keys or tokens, and copies of them in metadata.
    """
    metadata = {name: value for name, value in section(manifest, "metadata").items() if name != "managedFields"}
    return _hide({**manifest, "metadata": metadata})


def _hide(value: Any, inside: str = "") -> Any:
    """Return a value with secrets replaced, depending on the field that contains it."""
    match value:
        case dict() if inside == "annotations":
            return {name: _clean_annotation(str(item)) for name, item in value.items() if name != _APPLIED}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case {"name": str(), "value": _, **rest}:
            return {"name": value["name"], "value": HIDDEN, **_hide(rest)}
        case dict():
            return {name: HIDDEN if _is_secret(name, item) else _hide(item, name) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case list() if inside in {"args", "command"}:
            return [*_clean_arguments(value)]  # pyright: ignore[reportUnknownArgumentType]
        case list():
            return [_hide(item, inside) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case str():
            return _without_tokens(value)
        case _:
            return value


def _is_secret(name: str, value: Any) -> bool:
    """True if a field's name suggests a credential. `secretName` only refers to a Secret."""
    return (
        isinstance(value, str)
        and any(word in name.lower().replace("-", "_") for word in _SECRET_NAMES)
        and name != "secretName"
    )


def _clean_annotation(value: str) -> str:
    """Return an annotation without credentials. Long texts and JSON are hidden completely, since tools copy objects
    there.
    """
    return HIDDEN if len(value) > _SHORT or value.lstrip().startswith(("{", "[")) else _without_tokens(value)


def _without_tokens(text: str) -> str:
    """Return a text without anything that looks like a credential."""
    for form, replacement in (
        *((_PEM, HIDDEN), (_USER, rf"\1{HIDDEN}@"), (_QUERY, rf"\1{HIDDEN}"), (_BEARER, rf"\1{HIDDEN}")),
        *((_TOKEN_PREFIX, HIDDEN), (_RANDOM, HIDDEN)),
    ):
        text = form.sub(replacement, text)
    return text


def _clean_arguments(arguments: list[Any]) -> Iterator[Any]:
    """Yield arguments without secrets: the value of a flag named like one, and in shell lines or JSON everything
    after such a word.
    """
    is_value = False
    for argument in map(str, arguments):
        name, equals, _ = argument.partition("=")
        is_secret_flag = _FLAG.fullmatch(name) and _ARGUMENT.search(name)
        if is_value:
            yield HIDDEN
        elif is_secret_flag:
            yield f"{name}={HIDDEN}" if equals else argument
        else:
            match = _ARGUMENT.search(argument)
            yield _without_tokens(f"{argument[: match.end()]} {HIDDEN}" if match else argument)
        is_value = not is_value and bool(is_secret_flag) and not equals and argument.startswith("-")


_FLAG = re.compile(r"[-\w.]+")
"""Argument that can be the name of a flag: without spaces, quotes or JSON."""
_ARGUMENT = re.compile("|".join(word.replace("_", "[-_]") for word in (*_SECRET_NAMES, "bearer", "key")), re.IGNORECASE)
"""Words in arguments before a secret. "key" is included here, not in the names of fields: `key` of a Secret reference
is no secret.
"""
