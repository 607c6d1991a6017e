"""The operator's metrics are those that docs/operations.md lists; alerts and the dashboard ask for no others."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import promql_parser as promql
import pytest
import yaml

from modelplane_operator import metrics
from modelplane_operator.settings import Settings
from scripts import dashboard
from tests.support.declared import declared as controllers
from tests.support.manifests import ROOT

ALERTS = [
    rule
    for group in yaml.safe_load((ROOT / "charts/modelplane-operator/files/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((ROOT / dashboard.FILE).read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
PUT_ON = {"instance", "pod", "namespace", "job"}
"""Labels that Prometheus puts on whatever it scrapes."""
PROCESS = {"process_resident_memory_bytes": PUT_ON, "process_open_fds": PUT_ON}
"""What every process tells, by prometheus_client."""

KUBERNETES = {
    "apiserver_validating_admission_policy_check_total": {
        *("policy", "policy_binding", "error_type", "enforcement_action"),
    }
}
"""What API servers tell: tests/test_power_secrets.py asks one."""


@cache
def declared() -> dict[str, set[str]]:
    """The series there are, with their labels: of a registry, as a kind declares them, the rest as they are written."""
    found = dict[str, set[str]]()
    for collector in set(metrics.Metrics().registry._collector_to_names):
        if isinstance(collector, metrics.Histogram):
            for part in ("count", "sum", "bucket"):
                found[f"{collector._name}_{part}"] = {*collector._labelnames, *(("le",) if part == "bucket" else ())}
        elif isinstance(collector, metrics.Counter):
            found[f"{collector._name}_total"] = {*collector._labelnames}
    source = (ROOT / "modelplane_operator/metrics.py").read_text()
    found |= {name: set[str]() for name in re.findall(r'_gauge\(\s*"(\w+)"', source)}
    found |= {name: {label} for name, label in re.findall(r'_by\(\s*"(\w+)",\s*"[^"]*",\s*"(\w+)"', source)}
    for name, labels in re.findall(r'CounterMetricFamily\(\s*"(\w+)",\s*"[^"]*",\s*labels=\(([^)]*)\)', source):
        found[f"{name}_total"] = set(re.findall(r"\w+", labels))
    found |= {gauge.name: set(gauge.labels) for one in asyncio.run(controllers()) for gauge in one.gauges}
    return found


def documented() -> dict[str, set[str]]:
    """What the page's table says: of a histogram the name alone."""
    page = (ROOT / "docs/operations.md").read_text().partition("## Metrics\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`modelplane_[^|]*)\|([^|]*)\|", page, re.MULTILINE)
    return {
        name: set(re.findall(r"`(\w+)`", labels)) for names, labels in rows for name in re.findall(r"`(\w+)`", names)
    }


def test_the_page_lists_every_metric_with_its_labels_and_no_other() -> None:
    told = {re.sub("_(count|sum|bucket)$", "", name): labels - {"le"} for name, labels in declared().items()}

    assert len(told) > 25
    assert documented() == told


def selectors(node: Any) -> Iterator[Any]:
    """Every selector of series in an expression."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for part in ("lhs", "rhs", "expr", "vector_selector"):
        if (below := getattr(node, part, None)) is not None:
            yield from selectors(below)
    for below in getattr(node, "args", ()):
        yield from selectors(below)


def grouped(node: Any) -> Iterator[tuple[set[str], set[str]]]:
    """The labels by which an expression sums up, and the names of what it sums up."""
    if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
        yield set(node.modifier.labels), {one.name for one in selectors(node.expr)}
    for part in ("lhs", "rhs", "expr"):
        if (below := getattr(node, part, None)) is not None:
            yield from grouped(below)
    for below in getattr(node, "args", ()):
        yield from grouped(below)


def parsed(query: str) -> Any:
    return promql.parse(query.replace("$__rate_interval", "5m"))


QUERIES = [
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in ALERTS),
    *(
        pytest.param(target["expr"], id=f"{panel['title']}: {target['legendFormat']}")
        for panel in PANELS
        for target in panel["targets"]
    ),
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_there_is(query: str) -> None:
    known = declared() | PROCESS | KUBERNETES
    tree = parsed(query)
    asked = list(selectors(tree))

    assert asked
    for one in asked:
        assert one.name in known
        assert {matcher.name for matcher in one.matchers.matchers} <= known[one.name] | PUT_ON
    for by, names in grouped(tree):
        assert by <= set.union(*(known[name] for name in names)) | PUT_ON


def test_a_query_for_what_there_is_not_is_found_out() -> None:
    """Of the helpers above: that they see into aggregations, functions and both sides of an operator."""
    tree = parsed('max by (kind) (rate(one{a="b"}[$__rate_interval])) > on (x) sum (two) or absent(three == 1)')

    assert [one.name for one in selectors(tree)] == ["one", "two", "three"]
    assert list(grouped(tree)) == [({"kind"}, {"one"})]
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        parsed("sum by (kind (modelplane_leading)")


def joins(node: Any) -> Iterator[Any]:
    """Every operator between two vectors that are not summed up by the same labels."""
    if isinstance(node, promql.BinaryExpr):
        sides = (node.lhs, node.rhs)
        by = [side.modifier.labels for side in sides if isinstance(side, promql.AggregateExpr) and side.modifier]
        if all(list(selectors(side)) for side in sides) and not (len(by) == 2 and by[0] == by[1]):
            yield node
    for part in ("lhs", "rhs", "expr"):
        if (below := getattr(node, part, None)) is not None:
            yield from joins(below)
    for below in getattr(node, "args", ()):
        yield from joins(below)


@pytest.mark.parametrize("query", QUERIES)
def test_a_join_compares_all_that_tells_pods_apart(query: str) -> None:
    """Whatever scrapes them: two jobs may ask the same pods, and call them alike or not."""
    known = declared() | KUBERNETES
    for join in joins(parsed(query)):
        one, other = (set.union(*(known[it.name] for it in selectors(side))) for side in (join.lhs, join.rhs))
        assert join.modifier is not None
        assert join.modifier.matching.type == promql.LabelModifierType.Exclude
        assert set(join.modifier.matching.labels) == one ^ other


def test_a_join_that_may_find_several_is_found_out() -> None:
    alike = "max by (n) (one) - max by (n) (two) > 0 and on (n) three"

    assert [str(one.modifier) for one in joins(parsed("max by (k) (one * on (instance) two) > 60"))] == [
        "on (instance)"
    ]
    assert [one.rhs.name for one in joins(parsed(alike))] == ["three"]


def test_an_engine_has_as_long_to_start_as_it_may_take_before_somebody_is_called() -> None:
    (rule,) = [rule for rule in ALERTS if rule["alert"] == "ModelplaneReplicasNotReady"]

    assert int(rule["for"].removesuffix("m")) * 60 > Settings().engine_startup
    assert [one.name for one in selectors(parsed(rule["expr"]))] == [
        "modelplane_modeldeployment_status_replicas",
        "modelplane_modeldeployment_status_replicas_ready",
    ]


def test_the_dashboard_shows_every_metric() -> None:
    shown = {one.name for panel in PANELS for target in panel["targets"] for one in selectors(parsed(target["expr"]))}
    asked = {re.sub("_(count|sum|bucket)$", "", name) for name in shown - PROCESS.keys()}

    assert asked == documented().keys()


def test_panels_do_not_overlap_and_are_told_apart() -> None:
    taken = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in PANELS:
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends)


def test_each_alert_has_its_place_in_the_page_and_says_what_is_wrong() -> None:
    headings = re.findall(r"^## (Modelplane\w+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)

    assert headings == [rule["alert"] for rule in ALERTS]
    for rule in ALERTS:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{rule['alert'].lower()}"
        known = set(re.findall(r"\w+", rule["expr"])) | {"instance"}
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["description"])) <= known
