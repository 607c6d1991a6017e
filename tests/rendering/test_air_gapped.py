"""What has to be mirrored is written down where people look for it, as it is in the code."""

from __future__ import annotations

import re

from modelplane_operator.api.serving_stack import Versions
from modelplane_operator.clusters.cluster.cluster_gateway import ENVOY_CHART, ENVOY_REPOSITORY
from modelplane_operator.clusters.stack.charts import STACK
from modelplane_operator.clusters.stack.digests import DIGESTS, chart_reference
from modelplane_operator.images import PICKER, SIDECAR
from modelplane_operator.routing.gateway import traefik
from modelplane_operator.routing.gateway.render.software import METALLB, METALLB_REPOSITORY, METALLB_VERSION
from tests.support.golden import Golden
from tests.support.manifests import ROOT

PAGE = ROOT / "docs" / "air-gapped.md"


def charts() -> str:
    theirs = "the InferenceGateway says"
    rows = [
        *((one.chart, "", one.version(Versions()), one.repository) for one in STACK),
        (traefik.CHART, ", on the hub", theirs, traefik.REPOSITORY),
        (ENVOY_CHART, ", on the hub, if asked for", theirs, ENVOY_REPOSITORY),
        (METALLB, ", on the hub, if asked for", METALLB_VERSION, METALLB_REPOSITORY),
    ]
    return "\n".join(
        [
            "| Chart | Version | Repository | Digest |",
            "|---|---|---|---|",
            *(
                f"| {chart}{where} | {version} | {repository} | {known(chart_reference(repository, chart, version))} |"
                for chart, where, version, repository in rows
            ),
        ]
    )


def known(reference: str) -> str:
    return DIGESTS.get(reference, "not known")


def images() -> str:
    rows = {
        PICKER: ("picker-image", "beside each model with several pods that answer"),
        SIDECAR: ("sidecar-image", "in the decoding pods of a model that splits prefill and decode"),
    }
    return "\n".join(
        [
            "| Image | Digest | Setting for another one | Where |",
            "|---|---|---|---|",
            *(f"| {image} | {known(image)} | `{name}` | {where} |" for image, (name, where) in rows.items()),
        ]
    )


def test_the_page_lists_every_chart_and_image(golden: Golden) -> None:
    text = PAGE.read_text()
    for name, table in (("charts", charts()), ("images", images())):
        between = re.compile(f"<!-- {name} -->\n.*<!-- end of {name} -->", re.DOTALL)
        assert between.search(text)
        text = between.sub(f"<!-- {name} -->\n{table}\n<!-- end of {name} -->", text)

    golden.holds(PAGE, text)
