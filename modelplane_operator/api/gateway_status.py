"""How the gateway of a workload cluster is reached."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kubeloop.model import Model


class GatewayStatus(Model):
    """The gateway of a workload cluster."""

    address: str | None = None
    """IP address or host name of the cluster's gateway."""
    server_name: Annotated[str, Field(max_length=253)] | None = None
    """Name in the certificate that the gateway shows the hub gateway, by https on port 443. Without it, the hub gateway
    uses http."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port for http, if it is not 80: for example `8080`, if the ServingStack has only that listener."""
