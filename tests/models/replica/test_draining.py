"""The program of a preStop hook, run beside servers that answer as engines do, or do not."""

import asyncio
import socket
import sys
import time
from collections.abc import Sequence

import pytest
from aiohttp import web

from modelplane_operator.api.model_replica import PlacedEngine
from modelplane_operator.models.replica.render.draining import QUIET_SECONDS, drain_by_load
from tests.support.manifests import Manifest

QUIET = 2


def hook(
    role: str = "Standalone", *, port: int = 8000, seconds: int = 300, ranks: int = 1, **container: object
) -> Manifest | None:
    engine = {"name": "engine", "image": "vllm/vllm-openai:v0.32.0", **container}
    member = {"role": role, "nodePoolName": "gpus", "template": {"spec": {"containers": [engine]}}}
    placed = PlacedEngine.model_validate({"name": "vllm", "ranks": ranks, "members": [member]})
    return drain_by_load(placed, placed.members[0], port, seconds)


def command(*, role: str = "Standalone", port: int = 8000, seconds: int = 300, ranks: int = 1) -> Sequence[str]:
    found = hook(role, port=port, seconds=seconds, ranks=ranks)
    assert found is not None
    return found["preStop"]["exec"]["command"]


@pytest.mark.parametrize(
    ("image", "line", "shell"),
    [
        ("vllm/vllm-openai:v0.32.0", (), "sh"),
        ("mirror.example.com:5000/lmsysorg/sglang@sha256:0", (), "sh"),
        ("registry.example.com/engine", ("/bin/bash", "-c", "exec vllm serve"), "/bin/bash"),
        ("registry.example.com/engine", ("vllm", "serve"), None),
        ("registry.example.com/vllm-openai/distroless", (), None),
    ],
)
def test_a_hook_is_run_by_a_shell_that_is_there_for_certain(
    image: str, line: tuple[str, ...], shell: str | None
) -> None:
    found = hook(image=image, command=line)

    assert (found["preStop"]["exec"]["command"][0] if found else None) == shell


async def lasts(role: str, port: int, seconds: int) -> float:
    """How long the program waits; the shell around it would signal every process of this machine."""
    _, _, _, _, program, _, *rest, _ = command(role=role, port=port, seconds=seconds)
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, "127.0.0.1", *rest, str(QUIET))
    assert await process.wait() == 0
    return time.monotonic() - began


async def serve(*metrics: str) -> tuple[web.AppRunner, int]:
    """An engine whose metrics are these, one after the other, and then the last; and its port."""
    left = list(metrics)

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/health":
            return web.Response()
        return web.Response(text=left.pop(0) if len(left) > 1 else left[0])

    app = web.Application()
    app.router.add_get("/{path}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, runner.addresses[0][1]


def load(running: float) -> str:
    return f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{model_name="m{{}}"}} {running}\n'


async def test_a_hook_lasts_as_long_as_there_is_something_to_drain() -> None:
    """All at once, as each takes seconds."""
    engines = [
        idle := await serve(load(0)),
        busy := await serve(*[load(1)] * 3, load(0)),
        unreadable := await serve("process_open_fds 7\n"),
        leader := await serve(load(0)),
    ]
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and listens not
        asked = (
            ("Standalone", silent.getsockname()[1]),
            ("Worker", silent.getsockname()[1]),
            ("Standalone", idle[1]),
            ("Standalone", busy[1]),
            ("Standalone", unreadable[1]),
            ("Worker", leader[1]),
        )
        waits = asyncio.gather(*(lasts(role, port, 20 if role == "Worker" else 8) for role, port in asked))
        await asyncio.sleep(5)
        await leader[0].cleanup()
        crashed, alone, rested, drained, whole, follower = await waits
    for engine, _ in engines:
        await engine.cleanup()

    assert max(crashed, alone) < 6, "nothing answers"
    assert QUIET <= rested < 7
    assert rested + 1 < drained < 8
    assert whole >= 8, "nobody can read what it does"
    assert 5 <= follower < 15, "until its leader has ended"


def test_no_rank_ends_before_the_others() -> None:
    assert "/metrics" in command()
    assert "/metrics" not in command(ranks=2)


def test_gateways_have_time_to_leave_a_pod_out() -> None:
    assert command()[-1] == str(QUIET_SECONDS)
