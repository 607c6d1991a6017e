"""How the gateway of a workload cluster is reached."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kubeloop.model import Model


class GatewayStatus(Model):
    """The gateway of a workload cluster."""

    address: str | None = None
    """IP address or host name under which the cluster's gateway is reached."""
    server_name: Annotated[str, Field(max_length=253)] | None = None
    """What the gateway proves to be, by https on port 443, to the hub's gateway and to nobody else. Without it, it is
    reached by http."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """By which it is reached by http, where that is not 80: `8080` of a ServingStack with such a listener alone."""
