"""What a request to an API server is about: as the server's audit log would say it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qs

APPLY = "application/apply-patch+yaml"
MUTATING = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# Nobody would crash on these, or they come by the clock; numbered, they would make numbering a lottery.
UNCOUNTED = (
    "events",
    "leases",
    "serviceaccounts/token",
    "tokenreviews",
    "subjectaccessreviews",
    "selfsubjectaccessreviews",
    "selfsubjectrulesreviews",
    "selfsubjectreviews",
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `verb` is "" for what is no resource (/version, /healthz); `apply` marks server-side apply."""

    method: str
    path: str
    query: str = ""
    user_agent: str = ""
    content_type: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    apply: bool = False
    dry_run: bool = False

    @property
    def mutating(self) -> bool:
        """Whether it can change something."""
        return self.verb in MUTATING and not self.dry_run

    def counted(self, uncounted: Collection[str]) -> bool:
        """Whether it gets a number among the mutating calls."""
        full = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return self.mutating and full not in uncounted


@dataclass(frozen=True, slots=True)
class Record:
    """One finished request, as the record file and the control API tell it. `outcome` says what became of it."""

    seq: int
    mutating_call: int | None
    time: float
    seconds: float
    call: Call
    body_bytes: int
    body_sha256: str
    status: int | None
    outcome: str
    rules: tuple[int, ...] = ()
    events: int | None = None
    body: str | None = None


def read_call(method: str, path: str, query: str, headers: Mapping[str, str]) -> Call:
    """What a request is about."""
    parts = [part for part in path.split("/") if part]
    options = parse_qs(query, keep_blank_values=True)
    content_type = headers.get("Content-Type", "")
    call = Call(method, path, query, headers.get("User-Agent", ""), content_type)
    match parts:
        case ["api", version, *rest]:
            group = ""
        case ["apis", group, version, *rest]:
            pass
        case _:
            return call
    if not rest:
        return replace(call, group=group, version=version)  # discovery
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    return replace(
        call,
        verb=_verb(method, name, options),
        group=group,
        version=version,
        resource=resource,
        subresource=subresource,
        namespace=namespace,
        name=name,
        apply=method == "PATCH" and content_type.startswith(APPLY),
        dry_run="dryRun" in options,
    )


def _verb(method: str, name: str, options: Mapping[str, list[str]]) -> str:
    match method:
        case "GET" | "HEAD":
            if options.get("watch", ["false"])[0] in ("true", "1", ""):
                return "watch"
            return "get" if name else "list"
        case "DELETE":
            return "delete" if name else "deletecollection"
        case _:
            return _VERBS.get(method, "")
