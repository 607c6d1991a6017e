"""Render the cloud's own object of an InferenceCluster, with node pools as their InferenceClasses describe them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kubeloop.objects import Manifest, Section
from modelplane_operator.api import names
from modelplane_operator.api.inference_class import InferenceClass
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.clouds.eks import recipe as eks
from modelplane_operator.clouds.gke import recipe as gke
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.recipe import Recipe
from modelplane_operator.owned import on_hub

MOST_POOLS: Final = 8  # the limit of the clouds' own kinds


INFRASTRUCTURE: Final[Mapping[str, Recipe]] = {recipe.source: recipe for recipe in (eks.RECIPE, gke.RECIPE)}
"""Recipes of the sources that the operator can create clusters on."""


def render_infrastructure(
    cluster: InferenceCluster, classes: Mapping[str, InferenceClass], retained: Sequence[Section] = ()
) -> Manifest:
    """Return the cloud's object of a cluster. Raise CannotMake when a class is missing or has no block for this cloud.

    `retained`: pools of the cloud's object that are no longer desired and must stay as they are.
    """
    recipe = INFRASTRUCTURE[cluster.spec.cluster.source]
    kind, spec = recipe.kind, recipe.spec(cluster, classes)
    # The API server would reject more pools, with a message that does not explain where they come from.
    pools = [*spec["nodePools"], *retained]
    if len(pools) > MOST_POOLS:
        raise CannotMake(
            f"{len(pools)} pools are more than {MOST_POOLS}, with those that are removed and that models still run on: "
            f"{', '.join(pool['name'] for pool in retained)}"
        )
    return {
        "apiVersion": kind.definition.api_version,
        "kind": kind.definition.kind,
        "metadata": on_hub(cluster, cluster.metadata.name, namespace=names.SYSTEM_NAMESPACE),
        "spec": {**spec, "nodePools": pools},
    }


def charts_of(cluster: InferenceCluster, infrastructure: Manifest | None) -> tuple[Manifest, ...] | None:
    """Return the charts that only the cluster's cloud needs; None until the cloud's object exists."""
    recipe = INFRASTRUCTURE.get(cluster.spec.cluster.source)
    if recipe is None:
        return ()
    return tuple(recipe.charts(cluster, infrastructure["metadata"]["uid"])) if infrastructure else None


def objects_of(cluster: InferenceCluster, infrastructure: Manifest | None) -> tuple[Manifest, ...]:
    """Return the objects that the cloud needs on the cluster itself; none until the cloud's object exists."""
    recipe = INFRASTRUCTURE.get(cluster.spec.cluster.source)
    return tuple(recipe.objects(cluster, infrastructure)) if recipe and infrastructure else ()


def driver_root_of(cluster: InferenceCluster) -> str:
    """Return the directory of NVIDIA's driver on the nodes; empty for the default."""
    origin = cluster.spec.cluster
    referenced = origin.existing.cloud if origin.source == "Existing" and origin.existing else None
    for recipe in INFRASTRUCTURE.values():
        if origin.source == recipe.source or (referenced and getattr(referenced, recipe.source.lower(), None)):
            return recipe.driver_root
    return ""
