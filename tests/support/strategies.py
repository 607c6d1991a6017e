"""Small fleets and deployments for hypothesis: small enough that every way to place something can be tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_deployment import ModelDeployment
from tests.support import builders as b

SIZES = ("40Gi", "80Gi", "141Gi")
CLUSTERS = ("a", "b", "c", "d")
LABELS = ({}, {"region": "eu"}, {"region": "us"})
TAINTS = (b.taint("drain", effect="NoExecute"), b.taint("upkeep", "on"))
TOLERATIONS = (b.toleration("drain"), b.toleration("upkeep", value="on"), b.toleration())

devices = st.builds(
    lambda size, count, claim: {"size": size, "count": count, "claim": claim},
    st.sampled_from(SIZES),
    st.integers(0, 8),
    st.sampled_from(("DRA", "DRA", "Synthetic")),
)


fabrics = st.sampled_from((None, None, None, ("east", 1), ("west", 2), ("", 0)))


@st.composite
def pools(draw: st.DrawFn, most_nodes: int = 4) -> Sequence[b.Manifest]:
    """One to three pools, each with one to three kinds of GPU."""
    published: list[b.Manifest] = []
    for number in range(draw(st.integers(1, 3))):
        kinds: list[dict[str, Any]] = draw(st.lists(devices, min_size=1, max_size=3))
        gpus = [b.gpu(k["size"], k["count"], name=f"gpu{i}", claim=k["claim"]) for i, k in enumerate(kinds)]
        nodes, fabric = draw(st.integers(0, most_nodes)), draw(fabrics)
        published.append(b.pool(f"p{number}", *gpus, nodes=nodes, fabric=fabric))
    return published


# A short catalogue serves most tests: fleets and deployments meet more often, and hypothesis draws and shrinks faster.
POOLS = (
    (b.gpu("80Gi"),),
    (b.gpu("141Gi", 8),),
    (b.gpu("141Gi", 4), b.gpu("80Gi", 4, name="less")),
    (b.synthetic("141Gi"), b.gpu("80Gi", 2)),
    (b.gpu("40Gi", 0),),
)
ENGINES = (
    [b.request(b.memory("80Gi"))],
    [b.request(b.memory("141Gi"), count=4)],
    [b.request(b.memory("80Gi"), name="x", count=4), b.request(b.memory("141Gi"), name="y", count=3)],
    [b.request(b.memory("40Gi"))],
)
often = st.sampled_from((True, True, True, True, True, False))


@st.composite
def clusters(draw: st.DrawFn, name: str) -> InferenceCluster:
    published = draw(st.lists(st.tuples(st.sampled_from(POOLS), st.integers(0, 5), fabrics), min_size=1, max_size=3))
    return b.cluster(
        name,
        *(
            b.pool(f"p{n}", *found, nodes=nodes, fabric=fabric, shared=not draw(often))
            for n, (found, nodes, fabric) in enumerate(published)
        ),
        ready=True if draw(often) else draw(st.sampled_from((False, None))),
        address="10.0.0.1" if draw(often) else None,
        taints=() if draw(often) else draw(st.lists(st.sampled_from(TAINTS), max_size=2, unique_by=lambda t: t["key"])),
        terminating=not draw(often) and not draw(often),
        **draw(st.sampled_from(LABELS)),
    )


fleets = st.integers(0, len(CLUSTERS)).flatmap(lambda size: st.tuples(*(clusters(name) for name in CLUSTERS[:size])))

requests = st.lists(
    st.builds(lambda size, count: (size, count), st.sampled_from(SIZES), st.integers(1, 8)), min_size=1, max_size=3
).map(lambda asked: [b.request(b.memory(size), name=f"r{i}", count=n) for i, (size, n) in enumerate(asked)])


@st.composite
def engines(
    draw: st.DrawFn,
    name: str,
    asked: st.SearchStrategy[Sequence[b.Manifest]] = st.sampled_from(ENGINES),  # noqa: B008
) -> b.Manifest:
    copies = draw(st.integers(1, 2))
    if draw(often):
        return b.engine(*draw(asked), name=name, copies=copies)
    leader = draw(st.one_of(st.just([]), asked))
    return b.gang(leader, draw(asked), nodes=draw(st.integers(1, 2)), name=name, copies=copies)


@st.composite
def deployments(
    draw: st.DrawFn,
    name: str = b.MODEL,
    asked: st.SearchStrategy[Sequence[b.Manifest]] = st.sampled_from(ENGINES),  # noqa: B008
) -> ModelDeployment:
    return b.deployment(
        *[draw(engines(f"e{number}", asked)) for number in range(draw(st.sampled_from((1, 1, 2, 3))))],
        replicas=draw(st.integers(0, 6)),
        name=name,
        uid=f"uid-of-{name}",
        labels=None if draw(often) else draw(st.sampled_from(LABELS)),
        tolerations=() if draw(often) else draw(st.lists(st.sampled_from(TOLERATIONS), max_size=2)),
        failover=draw(st.sampled_from((None, {"after": "5m"}, {"after": "30s", "maxShare": "100%"}))),
    )
