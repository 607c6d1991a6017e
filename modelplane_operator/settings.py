"""Read the settings from flags and environment variables. No other module reads the environment.

Each field is an option: `log_level` is the flag `--log-level`, or the variable `MODELPLANE_LOG_LEVEL`.
"""

# ruff: noqa: RUF009 - _option returns a dataclass field

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

from kubeloop.client.access import SERVICE_ACCOUNT, Access, in_cluster, read_kubeconfig
from kubeloop.client.limits import MIB
from kubeloop.errors import KubeconfigError
from kubeloop.lease import Times
from modelplane_operator import setting_values as values
from modelplane_operator.api import names
from modelplane_operator.images import Images
from modelplane_operator.models.cache.render import Hydrator
from modelplane_operator.models.replica.render import Lifecycle
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.routing.gateway.render import KEYS

# Environment variables that Helm's processes get: proxies, certificates and registry credentials.
HELMS = frozenset(
    {"PATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "HELM_REGISTRY_CONFIG"}
)


# Variables of OpenTelemetry that enable traces.
OTLP = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
OTLP_PROTOCOL = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class SettingsError(ValueError):
    """A setting is invalid. The message names it."""


def _option(default: Any, read: Callable[[str], Any], meaning: str) -> Any:
    """Declare an option: its default, its parser and its help text."""
    return field(default=default, metadata={"read": read, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the operator. Times are in seconds."""

    kubeconfig: Path | None = _option(
        None, Path, "kubeconfig of the hub (default: KUBECONFIG, the pod's service account, or ~/.kube/config)"
    )
    lease_namespace: str = _option(
        names.SYSTEM_NAMESPACE, values.dns_label, "namespace of the Lease by which operators elect a leader"
    )
    lease_duration: float = _option(
        15.0,
        values.lease,
        "seconds without a renewal after which another operator becomes the leader; a leader stops writing after two "
        "thirds of them",
    )
    listen: tuple[str, int] = _option(
        ("127.0.0.1", 8080),
        values.address,
        "HOST:PORT of /healthz, /readyz and /metrics; in the image :8080, because the kubelet connects to the pod's "
        "address",
    )
    admission_listen: tuple[str, int] | None = _option(
        None,
        values.address,
        "HOST:PORT of the admission webhook (default: no webhook); API servers call it by HOST if that is a name, and "
        "by its Service otherwise",
    )
    admission_clients: Path | None = _option(
        None,
        values.authorities,
        "FILE with CA certificates: API servers need a client certificate of one of them (default: they need none)",
    )
    log_level: str = _option("info", values.one_of("debug", "info", "warning", "error"), "lowest level that is logged")
    resync: float = _option(
        3600.0, values.seconds, "seconds, on average, until an unchanged object is reconciled again"
    )
    engine_startup: float = _option(
        3600.0, values.seconds, "seconds until an engine must answer; afterwards the kubelet restarts it"
    )
    engine_drain: float | None = _option(
        None,
        values.seconds,
        "seconds for an engine's pod to finish its answers before the engine is stopped (default: five sixths of "
        "engine-grace)",
    )
    engine_grace: float = _option(360.0, values.seconds, "seconds until an engine that shall stop is killed")
    drain_grace: float = _option(
        30.0, values.seconds, "seconds that a replica still answers after its endpoint was withdrawn"
    )
    max_disruptions: str = _option(
        "5%",
        values.amount,
        "how many replicas of the fleet may be out of service at a time through changes that the operator makes by "
        "itself: a number, or a percentage, rounded down, at least one",
    )
    allow_endpoints: tuple[str, ...] = _option(
        (),
        values.outside,
        "names, .suffixes and networks, separated by commas, to which users' ModelEndpoints may lead although rules "
        "refuse them",
    )
    refuse_endpoints: tuple[str, ...] = _option(
        (),
        values.places,
        "names, .suffixes and networks to which they may not lead, such as the hub's pod network or its cluster domain",
    )
    keys_address: tuple[str, int] = _option(
        KEYS,
        values.address,
        "HOST:PORT of the key service, from which the hub's gateway gets the result for an API key",
    )
    helm: str = _option(
        "", str, "path of Helm 3, which installs serving stacks and the hub's gateway (default: none is installed)"
    )
    hub_gateway: str = _option(
        "helm",
        values.one_of("helm", "own", "apart"),
        "who installs the hub's gateway: helm, the operator; own, you; apart, the command hub-gateway, which also "
        "reconciles InferenceGateways",
    )
    tenant_namespaces: tuple[str, ...] = _option(
        (),
        values.dns_labels,
        "namespaces, separated by commas, that Traefik serves and whose Secrets are read (default: all)",
    )
    llm_inferences_on_hub: tuple[tuple[str, str], ...] = _option(
        (),
        values.grants,
        "NAMESPACE=TARGET, separated by commas: the namespaces of the hub in which LLMInferences with `incluster` may "
        "have their models",
    )
    llm_inference_hosts_on_hub: tuple[tuple[str, str], ...] = _option(
        (),
        values.hosts,
        "NAMESPACE=HOST, separated by commas: the hosts that their Ingresses may have there, such as "
        "*.team-a.example.com",
    )
    chart_mirror: str = _option(
        "", str, "source of all charts instead of their repositories: a folder, the URL of a repository, or oci://..."
    )
    chart_digests: str = _option(
        "checked",
        values.one_of("checked", "ignored"),
        "whether a chart must be the tested archive; ignored accepts a mirror's own archives",
    )
    helm_memory: int = _option(384 * MIB, values.size, "memory of one run of Helm")
    cluster_limits: float = _option(
        1.0,
        values.factor,
        "factor for the limits on what the API server of a workload cluster may send, and on what is kept of it",
    )
    image_registry: str = _option(
        "", values.registry, "mirror of the images of endpoint pickers and sidecars: HOST[/PATH]"
    )
    picker_image: str = _option(
        "", values.image, "image of the endpoint picker beside a model: HOST/NAME:TAG or @sha256:..."
    )
    sidecar_image: str = _option(
        "", values.image, "image of the sidecar of a decoding engine; a new one restarts these engines"
    )
    hydrator_image: str = _option(
        "", str, "the operator's own image, as workload clusters pull it, which fills the volumes of ModelCaches"
    )
    hugging_face: str = _option(
        "https://huggingface.co", values.http, "URL of Hugging Face, or of a mirror with its protocol, for ModelCaches"
    )
    google_endpoints: tuple[tuple[str, str], ...] = _option(
        (),
        values.endpoints,
        "SERVICE=URL, separated by commas: other addresses of compute, container, file or serviceusage of Google Cloud",
    )
    crash_record: Path | None = _option(
        None,
        Path,
        "folder that outlives the process: an object on which the process died twice is quarantined (default: none is)",
    )
    definitions: Path | None = _option(
        None,
        Path,
        "folder with the CustomResourceDefinitions of the Gateway API and of the AI gateway, as in the image",
    )

    def __post_init__(self) -> None:
        if self.engine_drain is not None and not self.engine_drain < self.engine_grace:
            raise SettingsError("--engine-drain must be shorter than --engine-grace, which includes it")

    @classmethod
    def read(cls, flags: Mapping[str, str | None] | None = None, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the settings from flags, variables and defaults. Raise SettingsError."""
        chosen = {
            option.name: value
            for option in fields(cls)
            if (value := _read_value(option.name, option.metadata["read"], flags or {}, environment)) is not None
        }
        return cls(**chosen)

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser, *only: str) -> None:
        """Add the options to a parser, or only some of them. `read` takes the parsed values as text."""
        for option in fields(cls):
            if not only or option.name in only:
                read = option.metadata["read"]
                is_choice = isinstance(read, values.OneOf)
                default = _format_default(option.default)
                parser.add_argument(
                    _flag(option.name),
                    metavar="|".join(read.choices) if is_choice else values.METAVARS.get(read, "VALUE"),
                    help=(option.metadata["meaning"] + default).replace("%", "%%"),  # argparse formats it
                    dest=option.name,
                )

    @property
    def times(self) -> Times:
        """Return the timing of the leader election."""
        return Times(self.lease_duration, self.lease_duration * 2 / 3, self.lease_duration * 2 / 15)

    @property
    def admission_name(self) -> str:
        """Return the host name by which API servers call the webhook."""
        host = self.admission_listen[0] if self.admission_listen else ""
        try:
            ip_address(host or "::")
        except ValueError:
            return host
        return names.ADMISSION_SERVICE

    @property
    def lifecycle(self) -> Lifecycle:
        """Return the timing of engines. The drain takes five sixths of the grace period by default."""
        drain = self.engine_grace * 5 / 6 if self.engine_drain is None else self.engine_drain
        return Lifecycle(int(self.engine_startup), int(drain), int(self.engine_grace))

    @property
    def images(self) -> Images:
        return Images(self.image_registry, self.picker_image, self.sidecar_image)

    @property
    def hydrator(self) -> Hydrator:
        return Hydrator(self.hydrator_image, self.hugging_face.rstrip("/"))

    @property
    def reach(self) -> Reach:
        return Reach(self.allow_endpoints, self.refuse_endpoints)

    def helms_environment(self, environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
        """Return the environment for Helm's processes. Proxy variables may be in upper or lower case."""
        return {name: value for name, value in environment.items() if name.upper() in HELMS}

    def hub(self, environment: Mapping[str, str] = os.environ) -> Access:
        """Return the access to the hub. Raise KubeconfigError, or OSError if the file cannot be read."""
        chosen = self.kubeconfig or environment.get("KUBECONFIG", "").split(os.pathsep)[0]
        host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not chosen and host and (SERVICE_ACCOUNT / "token").exists():
            return in_cluster(host, port or "443")
        path = Path(chosen or Path.home() / ".kube" / "config").absolute()
        if not path.exists():
            raise KubeconfigError(f"there is no kubeconfig {path}: name one by --kubeconfig or KUBECONFIG")
        return read_kubeconfig(path.read_text(), folder=path.parent)


def _read_value(
    name: str, read: Callable[[str], Any], flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> Any:
    """Return the parsed value of an option; None if it was not set."""
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


def _format_default(default: Any) -> str:
    """Return the suffix of a help text that shows the default."""
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


def traces_enabled(environment: Mapping[str, str] = os.environ) -> bool:
    """True if OpenTelemetry's variables name an endpoint for traces and do not disable them."""
    endpoints = [environment[name] for name in OTLP if environment.get(name)]
    exporter = environment.get("OTEL_TRACES_EXPORTER") or "otlp"
    return bool(endpoints) and environment.get("OTEL_SDK_DISABLED", "").lower() != "true" and exporter == "otlp"


def traces_by_grpc(environment: Mapping[str, str] = os.environ) -> str:
    """Return the variable that selects gRPC for traces; empty if none does."""
    variable = next((name for name in OTLP_PROTOCOL if environment.get(name)), "")
    return variable if variable and environment[variable] == "grpc" else ""
