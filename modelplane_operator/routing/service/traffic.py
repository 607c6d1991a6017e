"""Decide by the gateway's own counters whether requests of services fail, and say it once.

Counters only grow, and begin again with each pod of the gateway. A sample holds what was added since the one before; a
window of them decides. What is said stays as it is until the fact changes, so that nothing is written at each look.

A request may pass a gateway several times, by several rules of a service's routes: the rule with the most requests is
that of the clients.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kubeloop.objects import Key
from modelplane_operator.api import names

WINDOW: Final = 300.0  # seconds
LEAST: Final = 10  # failed requests, or chance would decide
MANY, FEW = 0.2, 0.05  # the shares of failed requests from which a service is degraded, and below which it is not
GAVE_UP: Final = 499  # Traefik's status of a request whose client has ended it before an answer began
# Traefik's fast proxy counts a client that ends its stream as 502, which people who stop an answer do all the time. It
# looks like a backend without a connection, which the operator's own requests meet (routing/service/probe.py).
CUT_OFF: Final = 502
FAULTS: Final = frozenset(range(500, 600))
COUNTER: Final = re.compile(
    rb'(?:traefik_router_requests_total\{(?=[^}]*method="POST")|envoy_cluster_upstream_rq\{)'
    rb'[^}]*code="(?:[235][0-9]{2}|499)"'
)
"""Beginning of a line that counts requests that succeeded or failed; endpoints may answer with any three digits."""

Codes = Mapping[int, float]
"""Numbers of requests by status."""

_NUMBER: Final = r"([0-9]{1,18}(?:\.[0-9]{1,18})?(?:e\+[0-9]{1,2})?)$"
# Traefik 3: routers of HTTPRoutes; the operator's own requests have the method GET.
_TRAEFIK: Final = re.compile(r'^traefik_router_requests_total\{(?=[^}]*method="POST")([^}]*)\} ' + _NUMBER)
# Envoy Gateway 1.9: the clusters of HTTPRoutes' rules.
_ENVOY: Final = re.compile(r"^envoy_cluster_upstream_rq\{([^}]*)\} " + _NUMBER)
_LABEL: Final = re.compile(r'(code|router|envoy_response_code|envoy_cluster_name)="([^"]*)"')
# Other 4xx are the client's fault: who sends many such requests hides no failures of others.
_STATUS: Final = re.compile("[235][0-9]{2}|499")
_ROUTER: Final = re.compile(
    rf"httproute-(.+)-gw-{names.SYSTEM_NAMESPACE}-{names.HUB_GATEWAY}-ep-[a-z]+-(\d+)-[0-9a-f]+@.*"
)
_CLUSTER: Final = re.compile(r"httproute/([^/]+)/([^/]+)/rule/(\d+)(?:/.*)?")


def parse_counters(text: str) -> dict[tuple[str, str], Counter[int]]:
    """Return the requests by status of each rule of HTTPRoutes: of `namespace-name` of a route, and a rule."""
    requests: dict[tuple[str, str], Counter[int]] = {}
    for route, rule, code, count in _parse_lines(text.splitlines()):
        requests.setdefault((route, rule), Counter())[code] += int(count)
    return requests


def _parse_lines(lines: Iterable[str]) -> Iterator[tuple[str, str, int, float]]:
    """Yield route, rule, status and number of requests of each line that counts some."""
    for line in lines:
        matched = _TRAEFIK.match(line) or _ENVOY.match(line)
        if matched is None:
            continue
        labels = dict(_LABEL.findall(matched[1]))
        code = labels.get("code") or labels.get("envoy_response_code", "")
        router = _ROUTER.fullmatch(labels.get("router", ""))
        cluster = _CLUSTER.fullmatch(labels.get("envoy_cluster_name", ""))
        if not _STATUS.fullmatch(code):
            continue
        if router and int(code) != CUT_OFF:
            yield router[1], router[2], int(code), float(matched[2])
        elif cluster:
            yield _join(cluster[1], cluster[2]), cluster[3], int(code), float(matched[2])


def _join(namespace: str, route: str) -> str:
    """Return the namespace and name of a route as Traefik joins them, which writes `a--b` as `a-b`."""
    return re.sub("-+", "-", f"{namespace}-{route}")


@dataclass(slots=True)
class Traffic:
    """The requests of the last minutes, by service, and which services are degraded."""

    _last: dict[tuple[str, str, str], Counter[int]] = field(
        default_factory=dict[tuple[str, str, str], "Counter[int]"], init=False
    )
    """The last counters by pod of the gateway, route and rule."""
    _pods: set[str] = field(default_factory=set[str], init=False)
    """The pods of the gateway that were read before."""
    _added: dict[tuple[str, str], deque[tuple[float, Counter[int]]]] = field(
        default_factory=dict[tuple[str, str], "deque[tuple[float, Counter[int]]]"], init=False
    )
    """The time of each sample and what was added then, by route and rule."""
    _messages: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """The message of each degraded service, by `namespace-name` of its route."""

    def describe(self, service: Key) -> str:
        """Return that requests of a service fail, as a message; empty if they do not, or there are too few."""
        return self._messages.get(_get_route(service), "")

    def add(self, pod: str, text: str, now: float) -> None:
        """Add what a pod of the gateway has counted until now."""
        for (route, rule), counters in parse_counters(text).items():
            last = self._last.get((pod, route, rule))
            self._last[pod, route, rule] = counters
            if last is None and pod not in self._pods:
                continue  # how long ago these were is not known
            last = last or Counter[int]()
            added = counters - last if all(counters[code] >= count for code, count in last.items()) else counters
            if added:
                self._added.setdefault((route, rule), deque()).append((now, Counter(added)))
        self._pods.add(pod)

    def decide(self, pods: Iterable[str], services: Iterable[Key], now: float) -> list[Key]:
        """Return the services of which something else is said from now on; `pods` are those that the gateway has."""
        current, routes = {*pods}, {_get_route(service): service for service in services}
        self._pods &= current
        self._last = {key: counters for key, counters in self._last.items() if key[0] in current and key[1] in routes}
        for key, samples in list(self._added.items()):
            while samples and samples[0][0] < now - WINDOW:
                samples.popleft()
            if not samples or key[0] not in routes:
                del self._added[key]
        busiest: dict[str, Counter[int]] = {}
        for (route, _), samples in self._added.items():
            total = sum((added for _, added in samples), Counter[int]())
            if total.total() > busiest.get(route, Counter()).total():
                busiest[route] = total
        old, self._messages = self._messages, {}
        changed = list[Key]()
        for route, service in routes.items():
            message = _describe(busiest.get(route, Counter()), old.get(route, ""))
            if message:
                self._messages[route] = message
            if message != old.get(route, ""):
                changed.append(service)
        return changed


def _get_route(service: Key) -> str:
    """Return the namespace and name of a service's route, as gateways join them."""
    return _join(service.namespace, names.service_route(*service))


def _describe(codes: Counter[int], old: str) -> str:
    """Return what is said of requests with these statuses; what was said before, until few of them fail."""
    # Some clients, such as editors, give up most of their requests: only where nothing succeeds is that a fault.
    faults = FAULTS if any(code < 400 for code in codes) else FAULTS | {GAVE_UP}
    failed, total = Counter({code: count for code, count in codes.items() if code in faults}), codes.total()
    share = failed.total() / total if total else 0.0
    if old:
        return old if share > FEW else ""
    if failed.total() < LEAST or share < MANY:
        return ""
    code = failed.most_common(1)[0][0]
    code = f"{code} (clients gave up before an answer)" if code == GAVE_UP else code
    message = f"{failed.total()} of {total} requests in {WINDOW / 60:g} minutes failed with {code}"
    return f"{message}: look at the logs of the engines, or of the provider"
