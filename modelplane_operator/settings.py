"""Read the settings from flags and environment variables. No other module reads the environment.

Each field is an option: `lease_retry` is the flag `--lease-retry`, or the variable `MODELPLANE_LEASE_RETRY`.
"""

# ruff: noqa: RUF009 - _option answers a dataclass field

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from kubeloop.client.access import SERVICE_ACCOUNT, Access, in_cluster, read_kubeconfig
from kubeloop.client.limits import MIB, ServerLimits
from kubeloop.errors import KubeconfigError
from kubeloop.lease import Times
from modelplane_operator import setting_values as values
from modelplane_operator.api import names
from modelplane_operator.images import Images
from modelplane_operator.models.cache.render import Hydrator
from modelplane_operator.models.replica.render import Lifecycle
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.routing.gateway.render import KEYS

LogFormat = Literal["auto", "json", "console"]


# Environment variables that Helm's processes get: proxies, certificates and registry credentials.
HELMS = frozenset(
    {"PATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "HELM_REGISTRY_CONFIG"}
)


# Variables of OpenTelemetry that enable traces.
OTLP = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
OTLP_PROTOCOL = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


_LIMITS = ServerLimits()


class SettingsError(ValueError):
    """A setting is invalid. The message names it."""


def _option(default: Any, read: Callable[[str], Any], meaning: str) -> Any:
    """Declare an option: its default, its parser and its help text."""
    return field(default=default, metadata={"read": read, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the operator. Times are in seconds."""

    kubeconfig: Path | None = _option(None, Path, "of the hub (default: KUBECONFIG, the pod's account, ~/.kube/config)")
    identity: str = _option("", str, "what the holder of the lease is called; a suffix is added (default: the host)")
    lease_namespace: str = _option(names.SYSTEM_NAMESPACE, values.dns_label, "where the lease is")
    lease_name: str = _option("modelplane-operator", values.dns_label, "the lease that one of several operators holds")
    lease_duration: float = _option(15.0, values.seconds, "a leader that has not renewed for so long is replaced")
    lease_deadline: float = _option(10.0, values.seconds, "a leader that could not renew for so long stops writing")
    lease_retry: float = _option(2.0, values.seconds, "how often the leader renews, and others look")
    listen: tuple[str, int] = _option(
        ("127.0.0.1", 8080),
        values.address,
        "HOST:PORT of /healthz, /readyz and /metrics; the image says :8080, as the kubelet asks at the pod's address",
    )
    admission_listen: tuple[str, int] | None = _option(None, values.address, "HOST:PORT of the webhook (default: none)")
    admission_name: str = _option(names.ADMISSION_SERVICE, str, "by which API servers reach it")
    admission_clients: Path | None = _option(
        None,
        values.authorities,
        "a FILE of certificates: API servers have to show one that these have signed (default: none is asked for)",
    )
    http_api_servers: str = _option(
        "refused",
        values.one_of("refused", "allowed"),
        "whether a kubeconfig may lead to an API server by http://, where all on the way read its credentials",
    )
    http2: str = _option(
        "on",
        values.one_of("on", "off"),
        "whether API servers that speak HTTP/2 are asked over it: one connection for all, and not one for each watch",
    )
    log_level: str = _option(
        "info", values.one_of("debug", "info", "warning", "error"), "the least severe level that is logged"
    )
    log_format: LogFormat = _option(
        "auto",
        values.one_of("auto", "json", "console"),
        "how log lines are written; auto is json, and console on a terminal",
    )
    otlp_endpoint: str = _option(
        "",
        values.http,
        "where traces are sent, by OTLP over HTTP: http://HOST:4318; the variables OTEL_... say the rest, or all of it "
        "(default: there are none)",
    )
    resync: float = _option(3600.0, values.seconds, "every object is looked at again after about so long without news")
    workers: int = _option(16, values.count, "how many objects of one kind are reconciled at once")
    stop_grace: float = _option(5.0, values.seconds, "how long a stop waits for reconciles that run")
    engine_startup: float = _option(3600.0, values.seconds, "how long an engine may take until it answers")
    engine_drain: float | None = _option(
        None,
        values.seconds,
        "how long the answers of a pod have to end before its engine is told (default: five sixths of engine-grace)",
    )
    engine_grace: float = _option(
        360.0, values.seconds, "when an engine is killed, counted from the decision to end it"
    )
    drain_grace: float = _option(
        30.0, values.seconds, "how long a replica still answers after its endpoint was withdrawn"
    )
    allow_endpoints: tuple[str, ...] = _option(
        (),
        values.outside,
        "names, .suffixes and networks, by commas, that users' endpoints may lead to although rules refuse them",
    )
    refuse_endpoints: tuple[str, ...] = _option(
        (),
        values.places,
        "more that they may not lead to, such as the hub's pod network or its cluster domain; the same form",
    )
    keys_address: tuple[str, int] = _option(
        KEYS, values.address, "HOST:PORT at which the hub's gateway asks the key service about API keys"
    )
    helm: str = _option("", str, "the helm 3 that installs serving stacks on clusters; without one none is installed")
    hub_gateway: str = _option(
        "helm",
        values.one_of("helm", "own", "apart"),
        "who installs the hub's gateway: helm, where there is one, or you on your own; apart: the command hub-gateway, "
        "to which the operator leaves InferenceGateways",
    )
    traefik_account: str = _option(
        "",
        values.optional_dns_label,
        "the account in traefik-system that Traefik has; empty: its chart makes one, with its permissions",
    )
    tenant_namespaces: tuple[str, ...] = _option(
        (),
        values.dns_labels,
        "the namespaces, by commas, that Traefik serves and whose Secrets are read (default: all)",
    )
    llm_inferences_on_hub: tuple[tuple[str, str], ...] = _option(
        (),
        values.grants,
        "NAMESPACE=TARGET, by commas: whose LLMInferences with `incluster` may be in which namespaces of the hub",
    )
    llm_inference_hosts_on_hub: tuple[tuple[str, str], ...] = _option(
        (),
        values.hosts,
        "NAMESPACE=HOST, by commas: which hosts their Ingresses may have there, such as *.team-a.example.com",
    )
    chart_mirror: str = _option("", str, "where all charts are instead: a folder, a repository's URL, or oci://...")
    chart_digests: str = _option(
        "checked",
        values.one_of("checked", "ignored"),
        "whether charts must be the archives that were tested; those of a mirror may be packed anew",
    )
    helm_at_once: int = _option(8, values.count, "how many helms run at once; each takes some 60 MB")
    helm_memory: int = _option(384 * MIB, values.size, "how much memory one may take; two at once work on one cluster")
    helm_timeout: float = _option(300.0, values.seconds, "how long one helm may take")
    cluster_answer_size: int = _option(
        _LIMITS.answer,
        values.size,
        "the most that a workload cluster may say of one object; a cluster beyond it misbehaves",
    )
    cluster_page_size: int = _option(_LIMITS.page, values.size, "the same of a page of a list, which has 100 objects")
    cluster_list_size: int = _option(_LIMITS.listing, values.size, "the same of a whole list")
    cluster_list_objects: int = _option(_LIMITS.objects, values.amount, "the most objects of one list")
    cluster_kept_size: int = _option(
        _LIMITS.cached,
        values.size,
        "the same of all that is kept of its objects; it takes some four times that of memory",
    )
    cluster_events: int = _option(
        400, values.amount, "how many events of one workload cluster are looked at in a second, after a burst"
    )
    cluster_pause: float = _option(120.0, values.seconds, "how long a cluster that misbehaves is left alone, at first")
    image_registry: str = _option(
        "", values.registry, "where the images of pickers and sidecars are mirrored: HOST[/PATH]"
    )
    picker_image: str = _option("", values.image, "of the endpoint picker beside a model: HOST/NAME:TAG or @sha256:...")
    sidecar_image: str = _option(
        "", values.image, "of the sidecar before a decoding engine; another one restarts those"
    )
    hydrator_image: str = _option(
        "", str, "the operator's own image, as workload clusters pull it: it fills the volumes of ModelCaches"
    )
    hugging_face: str = _option(
        "https://huggingface.co",
        values.http,
        "where ModelCaches find Hugging Face, or a mirror that speaks its protocol",
    )
    cloud_lag: float = _option(
        120.0,
        values.seconds,
        "how long a cloud may take to show in its lists what was made there; less may make it twice",
    )
    google_endpoints: tuple[tuple[str, str], ...] = _option(
        (),
        values.endpoints,
        "SERVICE=URL, by commas: where compute, container, file or serviceusage of Google Cloud is instead",
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
                default = _format_default(option.default)
                parser.add_argument(
                    _flag(option.name),
                    metavar=_metavar(option.metadata["read"]),
                    help=option.metadata["meaning"] + default,
                    dest=option.name,
                )

    @property
    def times(self) -> Times:
        """Return the timing of the leader election. Raise SettingsError if it is inconsistent."""
        try:
            return Times(self.lease_duration, self.lease_deadline, self.lease_retry)
        except ValueError as error:
            raise SettingsError(f"--lease-retry, --lease-deadline, --lease-duration: {error}") from None

    @property
    def lifecycle(self) -> Lifecycle:
        """Return the timing of engines. The drain takes five sixths of the grace period by default."""
        drain = self.engine_grace * 5 / 6 if self.engine_drain is None else self.engine_drain
        return Lifecycle(int(self.engine_startup), int(drain), int(self.engine_grace))

    @property
    def limits(self) -> ServerLimits:
        """Return the limits for the responses of a workload cluster."""
        return ServerLimits(
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
        """Return the environment for Helm's processes. Proxy variables may be in upper or lower case."""
        return {name: value for name, value in environment.items() if name.upper() in HELMS}

    def traces(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """Return the endpoint for traces; empty to use OpenTelemetry's variables, None if traces are disabled."""
        endpoints = [environment[name] for name in OTLP if environment.get(name)]
        exporter = environment.get("OTEL_TRACES_EXPORTER") or "otlp"
        is_disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter != "otlp"
        return self.otlp_endpoint if (endpoints or self.otlp_endpoint) and not is_disabled else None

    def traces_by_grpc(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the variable that selects gRPC for traces; empty if none does, or the operator's own option
        overrides it.
        """
        variable = next((name for name in OTLP_PROTOCOL if environment.get(name)), "")
        return variable if variable and environment[variable] == "grpc" and not self.otlp_endpoint else ""

    def hub(self, environment: Mapping[str, str] = os.environ) -> Access:
        """Return the access to the hub. Raise KubeconfigError, or OSError if the file cannot be read."""
        chosen = self.kubeconfig or environment.get("KUBECONFIG", "").split(os.pathsep)[0]
        host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not chosen and host and (SERVICE_ACCOUNT / "token").exists():
            return in_cluster(host, port or "443")
        path = Path(chosen or Path.home() / ".kube" / "config").absolute()
        if not path.exists():
            raise KubeconfigError(f"there is no kubeconfig {path}: name one by --kubeconfig or KUBECONFIG")
        return read_kubeconfig(path.read_text(), folder=path.parent, plain_http=self.plain_http)


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


def _metavar(read: Callable[[str], Any]) -> str:
    """Return the placeholder of a flag's value for its help text."""
    if isinstance(read, values.OneOf):
        return "|".join(read.choices)
    return values.METAVARS.get(read, "VALUE")


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
