"""The process that the operator lives in: Kopf begins it, hears the signals and sees to it that it ends.

Kopf gets a registry of its own, with activities and, where the admission webhook is on, its handlers, and no resources
to watch: it reads, watches and writes nothing (docs/decisions/0010, 0081).
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import nullcontext

import kopf
from kopf._core.engines.peering import Identity

from kubeloop.client.access import Access
from kubeloop.quarantine import UNGUARDED, recorded
from modelplane_operator.ask.admission.server import Forgetful, register
from modelplane_operator.operator import Build, Operator, assemble
from modelplane_operator.settings import Settings

EXIT_SECONDS = 5.0  # for the lease and the connections, after the reconciles; then a process that was told is killed


async def host(settings: Settings, access: Access, build: Build, name: str = "operator") -> None:
    """Run the operator until a signal tells it to stop; raises what ended it otherwise."""
    with recorded(settings.crash_record) if settings.crash_record else nullcontext(UNGUARDED) as guard:
        await _host(settings, assemble(settings, access, build, guard, name))


async def _host(settings: Settings, operator: Operator) -> None:
    registry, ending, stop = kopf.OperatorRegistry(), asyncio.Event(), asyncio.Event()
    running: asyncio.Task[None] | None = None

    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT, id="begin")
    async def begin(**_: object) -> None:
        nonlocal running
        running = asyncio.create_task(operator.run(stop), name="operator")
        running.add_done_callback(lambda _: ending.set())

    @kopf.on.login(registry=registry, id="none")
    async def no_credentials(**_: object) -> None:
        """Kopf asks the API server nothing before it has credentials, so it asks nothing."""
        await asyncio.Event().wait()

    @kopf.on.cleanup(registry=registry, errors=kopf.ErrorsMode.PERMANENT, id="end")
    async def end(**_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):  # whoever tells us again is in a hurry
            asyncio.get_running_loop().add_signal_handler(number, os._exit, 128 + number)
        stop.set()
        if running is not None:
            await asyncio.wait({running})

    of_kopf, webhook = _kopf_settings(settings), operator.webhook
    await kopf.operator(
        registry=registry,
        settings=of_kopf,
        insights=register(webhook, registry, of_kopf) if webhook else None,
        memories=Forgetful() if webhook else None,
        # Nobody asks for it; but left to find one, Kopf asks for the user's name, and in a container there is none.
        identity=Identity("modelplane-operator"),
        standalone=True,
        clusterwide=True,
        stop_flag=ending,
    )
    if running is not None:
        await running


def _kopf_settings(settings: Settings) -> kopf.OperatorSettings:
    of_kopf = kopf.OperatorSettings()
    of_kopf.posting.enabled = False
    of_kopf.scanning.disabled = True
    of_kopf.process.ultimate_exiting_timeout = settings.stop_grace + EXIT_SECONDS
    return of_kopf
