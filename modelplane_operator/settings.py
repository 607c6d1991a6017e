"""What the process is told by flags and by its environment; the only reader of the latter.

A field is an option: `lease_retry` is the flag `--lease-retry`, and else the variable `MODELPLANE_LEASE_RETRY`.
"""

# ruff: noqa: RUF009 - _option answers a dataclass field

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal, Self

from modelplane_operator.api import names
from modelplane_operator.api.llm_inference_grant import is_reserved
from modelplane_operator.clients.access import SERVICE_ACCOUNT, Access, in_cluster, read_kubeconfig
from modelplane_operator.clients.lease import Times
from modelplane_operator.clients.limits import GIB, KIB, MIB, Limits
from modelplane_operator.kube.errors import KubeconfigError
from modelplane_operator.rendering.backend_url import Reach
from modelplane_operator.rendering.images import REFERENCE, REGISTRY, Images
from modelplane_operator.rendering.inference_gateway import KEYS
from modelplane_operator.rendering.model_cache import Hydrator
from modelplane_operator.rendering.model_replica import Lifecycle

LogFormat = Literal["auto", "json", "console"]


# What Helm's processes see of our environment: the way to charts, and who we are there.
HELMS = frozenset(
    {"PATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "HELM_REGISTRY_CONFIG"}
)


_LIMITS = Limits()
_UNITS: Mapping[str | None, int] = {None: 1, "Ki": KIB, "Mi": MIB, "Gi": GIB}


class SettingsError(ValueError):
    """A setting cannot be used; the message names it."""


def _option(default: Any, read: Callable[[str], Any], meaning: str) -> Any:
    return field(default=default, metadata={"read": read, "meaning": meaning})


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise ValueError("it must be above 0 and below a million")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if not 0 < count <= 1000:
        raise ValueError("it must be from 1 to 1000")
    return count


def _amount(text: str) -> int:
    amount = int(text)
    if not 0 < amount <= 10**7:
        raise ValueError("it must be from 1 to ten million")
    return amount


def _size(text: str) -> int:
    """Bytes, or as Kubernetes writes them: 512Ki, 8Mi, 1Gi."""
    found = re.fullmatch(r"([0-9]{1,12})(Ki|Mi|Gi)?", text)
    if found is None or not (size := int(found[1]) * _UNITS[found[2]]):
        raise ValueError("it must be a number of bytes, or one with Ki, Mi or Gi")
    return size


@dataclass(frozen=True, slots=True)
class _OneOf:
    choices: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text not in self.choices:
            raise ValueError(f"it must be one of {', '.join(self.choices)}")
        return text


def _one_of(*choices: str) -> _OneOf:
    return _OneOf(choices)


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise ValueError("it must be a DNS label: lower-case letters, digits and '-'")
    return text


def _optional_name(text: str) -> str:
    return _name(text) if text else ""


def _names(text: str) -> tuple[str, ...]:
    return tuple(sorted({_name(entry.strip()) for entry in text.split(",") if entry.strip()}))


def _http(text: str) -> str:
    if not re.fullmatch(r"https?://[-a-zA-Z0-9.:\[\]]+(/[-\w./~]*)?", text, re.ASCII):
        raise ValueError("it must be http:// or https:// with a host, and at most a path")
    return text


def _registry(text: str) -> str:
    if text and not REGISTRY.fullmatch(text):
        raise ValueError("it must be HOST[:PORT][/PATH], without a scheme")
    return text


def _image(text: str) -> str:
    if text and not REFERENCE.fullmatch(text):
        raise ValueError("it must be HOST/NAME:TAG, HOST/NAME@sha256:DIGEST, or both")
    return text


def _address(text: str) -> tuple[str, int]:
    """Host and port; an empty host is every address of the machine, IPv4 and IPv6."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) >= 2**16:
        raise ValueError("it must be HOST:PORT, or :PORT for all addresses")
    return host.strip("[]"), int(port)


def _places(text: str) -> tuple[str, ...]:
    """Names, `.suffixes` and networks, between commas."""
    places = tuple(entry.strip().lower() for entry in text.split(",") if entry.strip())
    for place in places:
        if ":" in place or "/" in place:
            ip_network(place)
    return places


def _grants(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of namespaces, between commas: FROM=TO."""
    pairs = (entry.strip().partition("=") for entry in text.split(",") if entry.strip())
    granted = tuple(sorted({(_name(source), _name(to)) for source, _, to in pairs}))
    if wrong := [to for _, to in granted if is_reserved(to)]:
        raise ValueError(f"{wrong[0]} is Kubernetes' or the operator's own namespace: models are elsewhere")
    return granted


_KINDS_OF_VALUES: Mapping[Callable[[str], Any], str] = {
    _seconds: "SECONDS",
    _count: "NUMBER",
    _amount: "NUMBER",
    _size: "SIZE",
    _address: "HOST:PORT",
    _image: "IMAGE",
    _registry: "HOST[/PATH]",
    Path: "PATH",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How the operator runs. Times are in seconds."""

    kubeconfig: Path | None = _option(None, Path, "of the hub (default: KUBECONFIG, the pod's account, ~/.kube/config)")
    identity: str = _option("", str, "what the holder of the lease is called; a suffix is added (default: the host)")
    lease_namespace: str = _option(names.SYSTEM_NAMESPACE, _name, "where the lease is")
    lease_name: str = _option("modelplane-operator", _name, "the lease that one of several operators holds")
    lease_duration: float = _option(15.0, _seconds, "a leader that has not renewed for so long is replaced")
    lease_deadline: float = _option(10.0, _seconds, "a leader that could not renew for so long stops writing")
    lease_retry: float = _option(2.0, _seconds, "how often the leader renews, and others look")
    listen: tuple[str, int] = _option(
        ("127.0.0.1", 8080),
        _address,
        "HOST:PORT of /healthz, /readyz and /metrics; the image says :8080, as the kubelet asks at the pod's address",
    )
    admission_listen: tuple[str, int] | None = _option(None, _address, "HOST:PORT of the webhook (default: none)")
    admission_name: str = _option(names.ADMISSION_SERVICE, str, "by which API servers reach it")
    http_api_servers: str = _option(
        "refused",
        _one_of("refused", "allowed"),
        "whether a kubeconfig may lead to an API server by http://, where all on the way read its credentials",
    )
    http2: str = _option(
        "off",
        _one_of("on", "off"),
        "whether API servers that speak HTTP/2 are asked over it: one connection for all, and not one for each watch",
    )
    log_level: str = _option(
        "info", _one_of("debug", "info", "warning", "error"), "the least severe level that is logged"
    )
    log_format: LogFormat = _option(
        "auto", _one_of("auto", "json", "console"), "how log lines are written; auto is json, and console on a terminal"
    )
    resync: float = _option(3600.0, _seconds, "every object is looked at again after about so long without news")
    workers: int = _option(16, _count, "how many objects of one kind are reconciled at once")
    stop_grace: float = _option(5.0, _seconds, "how long a stop waits for reconciles that run")
    engine_startup: float = _option(3600.0, _seconds, "how long an engine may take until it answers")
    engine_drain: float | None = _option(
        None,
        _seconds,
        "how long the answers of a pod have to end before its engine is told (default: five sixths of engine-grace)",
    )
    engine_grace: float = _option(360.0, _seconds, "when an engine is killed, counted from the decision to end it")
    drain_grace: float = _option(30.0, _seconds, "how long a replica still answers after its endpoint was withdrawn")
    allow_endpoints: tuple[str, ...] = _option(
        (),
        _places,
        "names, .suffixes and networks, by commas, that users' endpoints may lead to although rules refuse them",
    )
    refuse_endpoints: tuple[str, ...] = _option(
        (),
        _places,
        "more that they may not lead to, such as the hub's pod network or its cluster domain; the same form",
    )
    keys_address: tuple[str, int] = _option(
        KEYS, _address, "HOST:PORT at which the hub's gateway asks the key service about API keys"
    )
    helm: str = _option("", str, "the helm 3 that installs serving stacks on clusters; without one none is installed")
    hub_gateway: str = _option(
        "helm", _one_of("helm", "own"), "who installs the hub's gateway: helm, where there is one, or you on your own"
    )
    traefik_account: str = _option(
        "",
        _optional_name,
        "the account in traefik-system that Traefik has; empty: its chart makes one, with its rights",
    )
    tenant_namespaces: tuple[str, ...] = _option(
        (), _names, "the namespaces, by commas, that Traefik serves and whose Secrets are read (default: all)"
    )
    llm_inferences_on_hub: tuple[tuple[str, str], ...] = _option(
        (),
        _grants,
        "NAMESPACE=TARGET, by commas: whose LLMInferences with `incluster` may be in which namespaces of the hub",
    )
    chart_mirror: str = _option("", str, "where all charts are instead: a folder, a repository's URL, or oci://...")
    chart_digests: str = _option(
        "checked",
        _one_of("checked", "ignored"),
        "whether charts must be the archives that were tested; those of a mirror may be packed anew",
    )
    helm_at_once: int = _option(8, _count, "how many helms run at once; each takes some 60 MB")
    helm_memory: int = _option(384 * MIB, _size, "how much memory one may take; two at once work on one cluster")
    helm_timeout: float = _option(300.0, _seconds, "how long one helm may take")
    cluster_answer_size: int = _option(
        _LIMITS.answer, _size, "the most that a workload cluster may say of one object; a cluster beyond it misbehaves"
    )
    cluster_page_size: int = _option(_LIMITS.page, _size, "the same of a page of a list, which has 100 objects")
    cluster_list_size: int = _option(_LIMITS.listing, _size, "the same of a whole list")
    cluster_list_objects: int = _option(_LIMITS.objects, _amount, "the most objects of one list")
    cluster_kept_size: int = _option(
        _LIMITS.kept, _size, "the same of all that is kept of its objects; it takes some four times that of memory"
    )
    cluster_events: int = _option(
        400, _amount, "how many events of one workload cluster are looked at in a second, after a burst"
    )
    cluster_pause: float = _option(120.0, _seconds, "how long a cluster that misbehaves is left alone, at first")
    image_registry: str = _option("", _registry, "where the images of pickers and sidecars are mirrored: HOST[/PATH]")
    picker_image: str = _option("", _image, "of the endpoint picker beside a model: HOST/NAME:TAG or @sha256:...")
    sidecar_image: str = _option("", _image, "of the sidecar before a decoding engine; another one restarts those")
    hydrator_image: str = _option(
        "", str, "the operator's own image, as workload clusters pull it: it fills the volumes of ModelCaches"
    )
    hugging_face: str = _option(
        "https://huggingface.co", _http, "where ModelCaches find Hugging Face, or a mirror that speaks its protocol"
    )
    crash_record: Path | None = _option(
        None,
        Path,
        "a folder that outlives the process: an object on which it died twice is quarantined (default: none is)",
    )
    definitions: Path | None = _option(None, Path, "a folder with definitions of kinds to install, as the image has it")

    def __post_init__(self) -> None:
        _ = self.times
        if self.engine_drain is not None and not self.engine_drain < self.engine_grace:
            raise SettingsError("--engine-drain must be shorter than --engine-grace, which includes it")

    @classmethod
    def read(cls, flags: Mapping[str, str | None] | None = None, environment: Mapping[str, str] = os.environ) -> Self:
        """Settings from flags, variables and defaults; raises SettingsError."""
        chosen = {
            option.name: value
            for option in fields(cls)
            if (value := _value(option.name, option.metadata["read"], flags or {}, environment)) is not None
        }
        return cls(**chosen)

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser, *only: str) -> None:
        """Have a parser know the options, or only some; what it reads goes to `read` as text."""
        for option in fields(cls):
            if not only or option.name in only:
                default = _shown(option.default)
                parser.add_argument(
                    _flag(option.name),
                    metavar=_metavar(option.metadata["read"]),
                    help=option.metadata["meaning"] + default,
                    dest=option.name,
                )

    @property
    def times(self) -> Times:
        try:
            return Times(self.lease_duration, self.lease_deadline, self.lease_retry)
        except ValueError as error:
            raise SettingsError(f"--lease-retry, --lease-deadline, --lease-duration: {error}") from None

    @property
    def lifecycle(self) -> Lifecycle:
        drain = self.engine_grace * 5 / 6 if self.engine_drain is None else self.engine_drain
        return Lifecycle(int(self.engine_startup), int(drain), int(self.engine_grace))

    @property
    def limits(self) -> Limits:
        """How much one workload cluster may say."""
        return Limits(
            self.cluster_answer_size,
            self.cluster_page_size,
            self.cluster_list_size,
            self.cluster_list_objects,
            self.cluster_kept_size,
        )

    @property
    def images(self) -> Images:
        return Images(self.image_registry, self.picker_image, self.sidecar_image)

    @property
    def hydrator(self) -> Hydrator:
        return Hydrator(self.hydrator_image, self.hugging_face.rstrip("/"))

    @property
    def reach(self) -> Reach:
        return Reach(self.allow_endpoints, self.refuse_endpoints)

    @property
    def plain_http(self) -> bool:
        return self.http_api_servers == "allowed"

    @property
    def logs_json(self) -> bool:
        return self.log_format == "json" or (self.log_format == "auto" and not sys.stderr.isatty())

    def helms_environment(self, environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
        """What Helm's processes see. Proxies are named in capitals or not."""
        return {name: value for name, value in environment.items() if name.upper() in HELMS}

    def hub(self, environment: Mapping[str, str] = os.environ) -> Access:
        """The way to the hub; raises KubeconfigError, and OSError when its file cannot be read."""
        chosen = self.kubeconfig or environment.get("KUBECONFIG", "").split(os.pathsep)[0]
        host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not chosen and host and (SERVICE_ACCOUNT / "token").exists():
            return in_cluster(host, port or "443")
        path = Path(chosen or Path.home() / ".kube" / "config").absolute()
        if not path.exists():
            raise KubeconfigError(f"there is no kubeconfig {path}: name one by --kubeconfig or KUBECONFIG")
        return read_kubeconfig(path.read_text(), folder=path.parent, plain_http=self.plain_http)


def _value(
    name: str, read: Callable[[str], Any], flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> Any:
    """What an option was given as; None when it was not."""
    variable = f"MODELPLANE_{name.upper()}"
    source, text = _flag(name), flags.get(name)
    if text is None:
        source, text = variable, environment.get(variable) or None
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise SettingsError(f"{source}={text}: {error}") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _metavar(read: Callable[[str], Any]) -> str:
    """What a flag's value is, as its help says it."""
    if isinstance(read, _OneOf):
        return "|".join(read.choices)
    return _KINDS_OF_VALUES.get(read, "VALUE")


def _shown(default: Any) -> str:
    match default:
        case None | "" | ():
            return ""
        case (host, port):
            return f" (default: {host}:{port})"
        case float():
            return f" (default: {default:g})"
        case int() if default >= MIB:
            return f" (default: {default // MIB}Mi)"
        case _:
            return f" (default: {default})"
