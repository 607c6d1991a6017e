"""The operator as its users run it, a process of its own, with its metrics, CPU and memory."""

from __future__ import annotations

import os
import sys
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.report import ROOT
from localfleet.network import free_ports
from localfleet.processes import Command, Running, start

PROFILE = "MODELPLANE_BENCH_PROFILE"  # a folder: the operator runs under cProfile and leaves its profile there
TICKS = os.sysconf("SC_CLK_TCK")
START_SECONDS = 600.0
READS = frozenset({"get", "list", "watch", "ping", "version", "discover"})


@dataclass(frozen=True, slots=True)
class Usage:
    """The CPU, memory and requests of a process since its start."""

    asked: tuple[float, float]
    """The time before the scrape of its metrics, and its CPU seconds then."""
    answered: tuple[float, float]
    """The same after the scrape, which takes CPU too."""
    memory: float
    """Resident now, in MB."""
    peak: float
    writes: Counter[str]
    """By `side verb resource`. The lease does not count: it is renewed whatever happens."""
    reads: Counter[str]
    """Requests by `side verb`, those that write nothing."""

    def cpu_since(self, before: Usage) -> float:
        """Return the CPU seconds between two scrapes."""
        return self.asked[1] - before.answered[1]

    def seconds_since(self, before: Usage) -> float:
        return self.asked[0] - before.answered[0]

    def core_since(self, before: Usage) -> float:
        """Return the fraction of a core between two scrapes."""
        return self.cpu_since(before) / self.seconds_since(before)


@dataclass(slots=True)
class Operator:
    running: Running
    port: int

    @property
    def pid(self) -> int:
        return self.running.process.pid

    def cpu(self) -> float:
        """CPU seconds, of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self, which: str = "VmRSS") -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(which)) * 1024 / 1e6

    def open_files(self) -> int:
        """Nearly all of them are connections, one for each watch."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def metrics(self) -> dict[str, list[tuple[Mapping[str, str], float]]]:
        """Its samples by name: labels and value of each."""
        text = self.scrape_metrics().decode()
        found = defaultdict[str, list[tuple[Mapping[str, str], float]]](list)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name].append((sample.labels, sample.value))
        return found

    def scrape_metrics(self) -> bytes:
        """Return what Prometheus reads."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            return bytes(answer.read())

    def is_leading(self) -> bool:
        return self.responds() and self.value("modelplane_leading") == 1

    def responds(self) -> bool:
        """True if it answers a scrape."""
        try:
            self.metrics()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def value(self, name: str) -> float:
        """Return the sum of all samples of that name."""
        return sum(value for _, value in self.metrics()[name])

    def usage(self) -> Usage:
        asked = time.monotonic(), self.cpu()
        said = self.metrics()
        answered = time.monotonic(), self.cpu()
        writes, reads = Counter[str](), Counter[str]()
        for labels, count in said["modelplane_writes_total"]:
            if "leases" not in labels["resource"]:
                writes[f"{labels['side']} {labels['verb']} {labels['resource']}"] += int(count)
        for labels, count in said["modelplane_request_seconds_count"]:
            if labels["verb"] in READS:
                reads[f"{labels['side']} {labels['verb']}"] += int(count)
        return Usage(asked, answered, self.memory(), self.memory("VmHWM"), writes, reads)


@contextmanager
def operator(
    kubeconfig: Path,
    folder: Path,
    name: str = "operator",
    flags: Sequence[str] = (),
    *,
    module: str = "modelplane_operator",
    environment: Mapping[str, str] | None = None,
) -> Generator[Operator]:
    """An operator on a hub, started but not waited for; it is asked to end at the end."""
    (port,) = free_ports(1)
    argv = ["-m", module, "run", f"--kubeconfig={kubeconfig}", f"--listen=127.0.0.1:{port}"]
    argv += flags
    if profiles := os.environ.get(PROFILE):
        argv = ["-m", "cProfile", "-o", f"{profiles}/{name}.{os.getpid()}.prof", *argv]
    # As in the image, it finds itself compiled.
    known = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "", **(environment or {})}
    command = Command(name, [sys.executable, *argv], folder / f"{name}.log", known)
    one = Operator(start(command), port)
    try:
        yield one
    finally:
        one.running.end(seconds=30.0)


def wait_until_leading(one: Operator, seconds: float = START_SECONDS) -> None:
    one.running.wait_until(one.is_leading, seconds=seconds, what="the operator to lead")
