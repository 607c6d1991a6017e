"""Paths of engines, open to clients and closed, and whether one leads to an engine."""

from __future__ import annotations

from yarl import URL

from tests.integration.harness import Stage

MODEL_APIS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"),
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech", "/v1/images/generations"),
    *("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score", "/pooling", "/classify", "/tokenize"),
    *("/detokenize", "/invocations", "/v2/embed", "/inference/v1/generate", "/generate", "/completion", "/infill"),
    *("/v2", "/v2/models/model", "/v2/models/model/infer", "/v2/models/model/versions/1/ready", "/health", "/ping"),
    "/v1/models/org%2Fmodel",
)
OF_WHOEVER_RUNS_IT = (
    *("/", "/metrics", "/version", "/flush_cache", "/start_profile", "/stop_profile", "/collective_rpc", "/sleep"),
    *("/wake_up", "/get_server_info", "/slots", "/props", "/reset_prefix_cache", "/load_lora_adapter", "/metrics/"),
    *("/v1/../metrics", "/v1/%2e%2e/metrics", "/v1/..%2fmetrics", "//metrics", "/v1x", "/healthz", "/my-route"),
    *(
        "/v2/repository/index",
        "/v2/models/model/trace/setting",
        "/v2/systemsharedmemory/region/x/register",
        "/v2/logging",
    ),
)


async def reaches(stage: Stage, url: str, path: str, method: str = "POST", body: object = None) -> bool:
    """Return whether an engine has answered: the simulated ones say who they are, whatever the answer."""
    async with stage.session.request(
        method,
        URL(f"{url}{path}", encoded=True),
        json=(body or {}) if method == "POST" else None,
        allow_redirects=False,
    ) as answer:
        return "x-localfleet-pod" in answer.headers
