"""Host the operator in Kopf, which handles startup, signals and an orderly stop.

Kopf gets its own registry with activities and, if the admission webhook is enabled, its handlers. It watches no
resources, so it makes no requests to the API server (docs/internals/decisions/0010, 0081).
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import nullcontext

import kopf
from kopf._core.engines.peering import Identity

from kubeloop.client.access import Access
from kubeloop.quarantine import UNGUARDED, open_record
from modelplane_operator.ask.admission.server import Forgetful, register
from modelplane_operator.operator import Build, Operator, assemble
from modelplane_operator.settings import Settings

EXIT_SECONDS = 5.0  # seconds after the reconciles, for the lease and the connections; then the process is killed


async def host(settings: Settings, access: Access, build: Build, name: str = "operator") -> None:
    """Run the operator until a signal stops it. Raise the error that ended it otherwise."""
    with open_record(settings.crash_record) if settings.crash_record else nullcontext(UNGUARDED) as guard:
        await _host(assemble(settings, access, build, guard, name))


async def _host(operator: Operator) -> None:
    """Run an operator in Kopf until it ends."""
    registry, ending, stop = kopf.OperatorRegistry(), asyncio.Event(), asyncio.Event()
    running: asyncio.Task[None] | None = None

    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT, id="begin")
    async def begin(**_: object) -> None:
        """Start the operator. Kopf stops when it ends."""
        nonlocal running
        running = asyncio.create_task(operator.run(stop), name="operator")
        running.add_done_callback(lambda _: ending.set())

    @kopf.on.login(registry=registry, id="none")
    async def no_credentials(**_: object) -> None:
        """Wait forever. Kopf makes no request before it has credentials, so it makes none."""
        await asyncio.Event().wait()

    @kopf.on.cleanup(registry=registry, errors=kopf.ErrorsMode.PERMANENT, id="end")
    async def end(**_: object) -> None:
        """Stop the operator and wait for it. A second signal ends the process at once."""
        for number in (signal.SIGINT, signal.SIGTERM):  # a second signal ends the process at once
            asyncio.get_running_loop().add_signal_handler(number, os._exit, 128 + number)
        stop.set()
        if running is not None:
            await asyncio.wait({running})

    of_kopf, webhook = _kopf_settings(operator.stop_grace), operator.webhook
    await kopf.operator(
        registry=registry,
        settings=of_kopf,
        insights=register(webhook, registry, of_kopf) if webhook else None,
        memories=Forgetful() if webhook else None,
        # Unused, but without one Kopf looks up the user's name, and a container has none.
        identity=Identity("modelplane-operator"),
        standalone=True,
        clusterwide=True,
        stop_flag=ending,
    )
    if running is not None:
        await running


def _kopf_settings(stop_grace: float) -> kopf.OperatorSettings:
    """Return Kopf's settings: no Events, no scanning, and a deadline for the stop."""
    of_kopf = kopf.OperatorSettings()
    of_kopf.posting.enabled = False
    of_kopf.scanning.disabled = True
    of_kopf.process.ultimate_exiting_timeout = stop_grace + EXIT_SECONDS
    return of_kopf
