"""What an engine counts, under vLLM's names."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LABELS = ("model_name", "engine")
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of one engine's one run."""

    registry: CollectorRegistry
    running: Gauge
    waiting: Gauge
    cache_usage: tuple[Gauge, ...]
    prompt_tokens: Counter
    generation_tokens: Counter
    success: Mapping[str, Counter]
    """By the reason for which an answer ended."""
    first_token: Histogram
    per_token: tuple[Histogram, ...]
    whole: Histogram

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


def start_metrics(model: str) -> Metrics:
    """All metrics at zero, as at an engine's start."""
    registry = CollectorRegistry(auto_describe=False)

    def gauge(name: str, purpose: str) -> Gauge:
        return Gauge(f"vllm:{name}", purpose, LABELS, registry=registry).labels(model, "0")

    def counter(name: str, purpose: str) -> Counter:
        return Counter(f"vllm:{name}", purpose, LABELS, registry=registry).labels(model, "0")

    def histogram(name: str, purpose: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", purpose, LABELS, buckets=buckets, registry=registry).labels(model, "0")

    success = Counter(
        "vllm:request_success", "Requests that ended well.", (*LABELS, "finished_reason"), registry=registry
    )
    return Metrics(
        registry=registry,
        running=gauge("num_requests_running", "Requests being served."),
        waiting=gauge("num_requests_waiting", "Requests waiting to be served."),
        cache_usage=(  # the name changed between vLLM versions, and readers know one or the other
            gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1."),
            gauge("gpu_cache_usage_perc", "Share of the KV cache in use, 0 to 1."),
        ),
        prompt_tokens=counter("prompt_tokens", "Tokens read."),
        generation_tokens=counter("generation_tokens", "Tokens written."),
        success={reason: success.labels(model, "0", reason) for reason in ("stop", "length")},
        first_token=histogram("time_to_first_token_seconds", "Time to the first token.", _FIRST_TOKEN),
        per_token=(
            histogram("time_per_output_token_seconds", "Time per token after the first.", _PER_TOKEN),
            histogram("inter_token_latency_seconds", "Time per token after the first.", _PER_TOKEN),
        ),
        whole=histogram("e2e_request_latency_seconds", "Time from a request to its end.", _WHOLE),
    )
