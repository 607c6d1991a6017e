"""Networks of their own for programs with fixed ports, and ports that no two processes get."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from localfleet import network
from localfleet.enclosure import enclosure
from localfleet.errors import FleetError
from localfleet.network import free_ports
from localfleet.waiting import until
from tests.support.fronts import own_address

pytestmark = pytest.mark.processes

FIXED = 19000  # a port that a program insists on
SERVER = """
import sys, http.server, socketserver, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = urllib.request.urlopen(sys.argv[2], timeout=10).read() + b", " + sys.argv[3].encode()
        self.send_response(200); self.end_headers(); self.wfile.write(body)
    def log_message(self, *arguments): pass
fixed = socketserver.TCPServer(("127.0.0.1", 19000), Handler)
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
"""


class Backend(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"the backend")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def backend() -> Iterator[int]:
    (port,) = free_ports(1)
    with ThreadingHTTPServer((own_address(), port), Backend) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield port
        server.shutdown()


def get(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own
            return answer.read().decode()
    except OSError:
        return None


def test_two_programs_with_one_fixed_port_run_at_once(backend: int) -> None:
    ports = free_ports(2)
    address = (own_address(), backend)
    with enclosure([address], ports[:1]) as first, enclosure([address], ports[1:]) as second:
        programs = [
            subprocess.Popen(
                own.inside([sys.executable, "-c", SERVER, str(port), f"http://{own_address()}:{backend}", name])
            )
            for own, port, name in zip((first, second), ports, ("first", "second"), strict=True)
        ]
        try:
            for port, name in zip(ports, ("first", "second"), strict=True):
                answer = until(lambda port=port: get(f"http://127.0.0.1:{port}"), seconds=20, what=f"{name} to answer")
                assert answer == f"the backend, {name}"
        finally:
            for program in programs:
                program.terminate()
                program.wait()


def test_nothing_else_is_reached_from_inside(backend: int) -> None:
    code = f"import socket; socket.create_connection(('{own_address()}', {backend}), 2)"
    with enclosure([], []) as own:
        ended = subprocess.run(own.inside([sys.executable, "-c", code]), capture_output=True, text=True, check=False)

    assert ended.returncode
    assert "OSError" in ended.stderr


def test_an_enclosure_ends_with_its_process(tmp_path: Path) -> None:
    code = "import os; from localfleet.enclosure import enclosure\n"
    code += "with enclosure([], []) as own: print(own.keeper, flush=True); os._exit(1)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    keeper = Path(f"/proc/{int(ended.stdout)}")

    until(lambda: not keeper.exists() or None, seconds=10, what="the enclosure to end")


def test_a_port_that_is_taken_is_named() -> None:
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Backend) as server,
        pytest.raises(OSError, match="in use"),
        enclosure([], [server.server_port]),
    ):
        pass


def test_no_two_processes_get_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    few = range(20000, 20020)
    code = "import sys; from localfleet import network; network.PORTS = range(20000, 20020)\n"
    code += "print(network.free_ports(6), flush=True); sys.stdin.read()"
    monkeypatch.setattr(network, "PORTS", few)
    others = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        taken = [
            port for other in others if other.stdout for port in map(int, other.stdout.readline()[1:-2].split(","))
        ]
        mine = free_ports(6)

        assert len({*taken, *mine}) == 18
        with pytest.raises(FleetError, match="no 6 free ports from 20000 to 20019"):
            free_ports(6)
    finally:
        for other in others:
            other.communicate("")


def test_a_port_on_which_somebody_listens_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(network, "claimed", set[int]())
    monkeypatch.setattr(network, "PORTS", range(port, port + 1))
    with ThreadingHTTPServer(("127.0.0.1", port), Backend), pytest.raises(FleetError, match="no 1 free ports"):
        free_ports(1)

    assert free_ports(1) == [port]


def test_the_file_of_claims_is_in_a_folder_of_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALFLEET_CACHE", str(tmp_path))
    os.close(network.claims.__wrapped__())
    assert (tmp_path / "locks" / "ports").exists()

    def refuse() -> int:
        raise PermissionError

    monkeypatch.setattr(network, "claims", refuse)
    with pytest.raises(PermissionError):
        free_ports(1)
