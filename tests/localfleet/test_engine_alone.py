"""An engine in a process of its own, as a container of a real node runs it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.localfleet.engine_support import program

ALONE = "localfleet.engine.alone"
CHAT = {"messages": [{"role": "user", "content": "Who are you?"}]}


async def test_it_answers_by_its_command_line_until_it_is_told_to_end(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    arguments = (f"--model={tmp_path}", "--served-model-name", "llama", "--port", str(port))
    async with (
        program(ALONE, *arguments, "--localfleet-error-rate=0.5"),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        async with session.get("/v1/models") as answer:
            assert [one["id"] for one in (await answer.json())["data"]] == ["llama"]
        codes: list[int] = []
        for _ in range(2):
            async with session.post("/v1/chat/completions", json=CHAT) as answer:
                codes.append(answer.status)
        assert sorted(codes) == [200, 500]  # by the setting


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--model=/nowhere"], 1, "/nowhere has no weights"),
        (["--port=0", "--localfleet-crash=3"], 3, "ready"),
    ],
)
def test_it_ends_as_an_engine_would(arguments: list[str], code: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", ALONE, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code
    assert said in done.stdout + done.stderr
