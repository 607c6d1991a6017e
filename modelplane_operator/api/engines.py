"""What the engines of ModelDeployment and ModelReplica have in common, and their rules."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.model import AT_LEAST_ONE_PROPERTY, ATOMIC, Model, Rule
from modelplane_operator.api.bounds import POD_TEXT, SELECTOR_TEXT, SELECTORS, String63

Role = Literal["Standalone", "Leader", "Worker"]
Phase = Literal["Prefill", "Decode"]
ServingMode = Literal["Unified", "PrefillDecode"]
EngineType = Literal["vllm", "sglang", "trtllm-serve", "triton"]


# A path of an engine's own API, as a prefix of whole segments. No character of it means anything in an expression.
ServingPath = Annotated[str, Field(min_length=1, max_length=48, pattern="^/([A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*)?$")]


class Serving(Model):
    """How the engines of a replica share the work."""

    rules: ClassVar = (
        Rule(
            "self.mode != 'PrefillDecode' || self.picker != 'None'",
            "Serving mode PrefillDecode needs the endpoint picker, which sends each prompt to a prefill engine: leave "
            "`picker` out.",
            field="picker",
        ),
    )

    mode: ServingMode = "Unified"
    """`Unified`: every engine answers whole requests. `PrefillDecode`: one engine reads prompts, another writes
    answers."""
    picker: Literal["Auto", "None"] = "Auto"
    """`Auto`: if a replica has several pods that answer, an endpoint picker sends each request to a pod that has read
    most of its prompt and has a short queue. `None`: requests are spread over the pods."""
    paths: Annotated[tuple[ServingPath, ...], Field(max_length=12), ATOMIC] = ()
    """Additional paths of the engine that clients may call, each with all paths below it, for example `/my-route`. The
    cluster has to allow them (`isolation.pods.allowedPaths`)."""
    min_prefill_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 256
    """With mode PrefillDecode: the decode engine itself reads a prompt with fewer new tokens than this, as that is
    faster than a transfer from the prefill engine. Tokens are estimated as four characters each."""


class Worker(Model):
    """How many pods follow the leader."""

    nodes: Annotated[int, Field(ge=1, le=63)]
    """Follower pods per copy, each on a node of its own. Leave the whole block out for one."""


class CelSelector(Model):
    """A condition that a device must meet."""

    cel: Annotated[str, Field(min_length=1, max_length=10240)] | None = None
    """A boolean expression over `device`, in the language of Kubernetes DRA selectors, for example
    `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("79Gi")) >= 0`."""


# An empty selector would match every device.
NonEmptySelector = Annotated[CelSelector, AT_LEAST_ONE_PROPERTY]
DeviceCount = Annotated[int, Field(ge=1, le=64)]

WORKER_ONLY_ON_WORKER = Rule(
    "!has(self.worker) || self.role == 'Worker'",
    "The worker block sizes the followers of a gang: set it only on the member with role Worker.",
)
MEMBER_SHAPE = Rule(
    "(self.members.size() == 1 && self.members[0].role == 'Standalone') || (self.members.exists_one(m, m.role == "
    "'Leader') && self.members.exists(m, m.role == 'Worker') && !self.members.exists(m, m.role == 'Standalone'))",
    "An engine is either one member with role Standalone, or one Leader and one Worker.",
)


class EngineHealth(Model):
    """Where an engine says whether it answers requests."""

    path: Annotated[str, Field(min_length=1, max_length=1024, pattern="^/[!-~]*$")] = "/health"
    """Path that answers 200 only while the engine can answer requests: `/v1/health/ready` of NIM, `/v2/health/ready` of
    Triton."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of the check. Without it, the port of requests."""


class Engine(Model):
    """One serving unit of a replica; a kind adds the members."""

    name: String63
    """Name of the engine, unique in its replica. It becomes part of workload names: a DNS label is best."""
    copies: Annotated[int, Field(ge=1, le=64)] = 1
    """Identical copies of this engine in every replica."""
    phase: Phase | None = None
    """The engine's role if prefill and decode are split. Set it only with serving mode PrefillDecode."""
    type: EngineType | None = None
    """Program of the engine, which decides its metrics for the endpoint picker and its arguments for a ModelCache.
    Without it, SGLang if image or command say so, otherwise vLLM."""
    startup_seconds: Annotated[int, Field(ge=30, le=86400)] | None = None
    """Time from the start of its container until it must answer; otherwise it is restarted. Without it, an hour, or the
    operator's setting; more with a ModelCache of more than 360 GiB."""
    health: EngineHealth | None = None
    """Where its health is checked. Without it, `/health` on the port of requests."""
    ranks: Annotated[int, Field(ge=1, le=8)] = 1
    """Data-parallel ranks of each pod, each on its own port from 8000 on; the endpoint picker chooses among them. All
    engines of a replica have the same number; with a phase, one."""
    workers_serve: bool = False
    """Whether the workers of a gang answer requests too, as with wide expert parallelism. Otherwise only the leader
    does."""


def _sum(items: str, each: str, *, item: str = "x") -> str:
    """A sum over a list, or over the keys of a map, of a member `m`, where any part of its path may be missing."""
    parts = items.split(".")
    there = " && ".join(f"has(m.{'.'.join(parts[: length + 1])})" for length in range(len(parts)))
    return f"({there} ? m.{items}.map({item}, {each}).sum() : 0)"


def engine_rules(requests: str) -> tuple[Rule, ...]:
    """What the engines of one replica may have all together; `requests` is where a member has its device requests."""

    def total(of_member: str) -> str:
        return f"self.map(e, e.members.map(m, {of_member}).sum()).sum()"

    def selectors(each: str) -> str:
        return total(_sum(requests, f"has(d.selectors) ? d.selectors.map(s, {each}).sum() : 0", item="d"))

    text = (
        _sum("template.spec.containers", "has(x.command) ? x.command.map(y, y.size()).sum() : 0"),
        _sum("template.spec.containers", "has(x.args) ? x.args.map(y, y.size()).sum() : 0"),
        _sum(
            "template.spec.containers",
            "has(x.env) ? x.env.map(y, y.name.size() + (has(y.value) ? y.value.size() : 0)).sum() : 0",
        ),
        _sum("template.metadata.annotations", "m.template.metadata.annotations[x].size()"),
    )
    return (
        Rule(
            f"{selectors('1')} <= {SELECTORS}",
            f"All engines together may have at most {SELECTORS} selectors of devices: join some of them with &&.",
        ),
        Rule(
            f"{selectors('has(s.cel) ? s.cel.size() : 0')} <= {SELECTOR_TEXT}",
            f"All selectors of devices together may have at most {SELECTOR_TEXT} characters: make them shorter.",
        ),
        Rule(
            f"{total(' + '.join(text))} <= {POD_TEXT}",
            f"Commands, arguments, variables and annotations of all engines together may have at most {POD_TEXT} "
            "characters: put long texts into a ConfigMap and name it in `env`.",
        ),
    )


def serving_rules(*, when: str = "") -> tuple[Rule, ...]:
    """The rules that tie `serving` and `engines` of one object together; `when` limits them to objects that hold it."""
    one_rank = "self.engines.all(e, e.ranks == self.engines[0].ranks && (e.ranks == 1 || !has(e.phase)))"
    unless_split = f"{when}!has(self.serving) || self.serving.mode != 'PrefillDecode'"
    return (
        Rule(
            f"{unless_split} || size(self.engines) == 2",
            "Serving mode PrefillDecode needs exactly two engines: one with phase Prefill and one with phase Decode.",
            field="engines",
        ),
        Rule(
            f"{unless_split} || self.engines.exists_one(e, has(e.phase) && e.phase == 'Prefill')",
            "Serving mode PrefillDecode needs exactly one engine with `phase: Prefill`.",
            field="engines",
        ),
        Rule(
            f"{unless_split} || self.engines.exists_one(e, has(e.phase) && e.phase == 'Decode')",
            "Serving mode PrefillDecode needs exactly one engine with `phase: Decode`.",
            field="engines",
        ),
        Rule(
            f"{when}(has(self.serving) && self.serving.mode == 'PrefillDecode') || "
            "!self.engines.exists(e, has(e.phase))",
            "An engine's phase means something only with serving mode PrefillDecode: remove the phase, or set "
            "`serving: {mode: PrefillDecode}`.",
            field="engines",
        ),
        Rule(
            f"{when}{one_rank}",
            "One endpoint picker stands before all engines of a replica: give them the same number of ranks, and one "
            "where they have a phase.",
            field="engines",
        ),
    )
