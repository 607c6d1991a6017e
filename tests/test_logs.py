"""Log lines: one JSON object each, whoever logs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson
import pytest

from modelplane_operator.logs import LONGEST
from tests.support.manifests import ROOT

SPEAKING = """
import logging, structlog
from modelplane_operator import logs
logs.configure(level="{level}", json=True)
log = structlog.get_logger()
log.debug("detail")
log.info("replica placed", cluster="eu", index=3)
logging.getLogger("kopf.activities").warning("every stop says this")
logging.getLogger("kopf.activities").error("kopf %s", "failed")
logging.getLogger("kopf.objects").error("Handler 'inferenceclasses' failed permanently: a user's mistake")
logging.getLogger("aiohttp.server").warning("odd request")
logging.getLogger("botocore.parsers").debug("Response body: keys of an assumed role")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("reconcile failed", kind="ModelCache")
"""


SPEAKING_LONG = """
import structlog
from modelplane_operator import logs
logs.configure(level="{level}", json=True)
long = "begin" + "x" * 2**20 + "end"
structlog.get_logger().warning("watch fails", error=long, count=3)
try:
    raise ValueError(long)
except ValueError:
    structlog.get_logger().exception("reconcile failed")
"""


SPEAKING_TO_EYES = """
import structlog
from modelplane_operator import logs
logs.configure(level="info", json=False)
def read(token):
    raise ValueError("x" * 2**20)
token = "canary"
try:
    read(token)
except ValueError:
    structlog.get_logger().exception("reconcile failed", kind="ModelCache")
"""


def spoken(level: str, speaking: str = SPEAKING) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in logged(speaking.format(level=level)).splitlines()]


def logged(program: str) -> str:
    """What a process of its own logs: the configuration is for the whole process."""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT, check=True, timeout=120)
    assert said.stdout == b""
    return said.stderr.decode()


def test_all_lines_have_one_form_and_libraries_say_only_what_matters() -> None:
    lines = spoken("info")

    assert [list(line)[:3] for line in lines] == [["time", "level", "event"]] * 4
    assert [(line["level"], line["event"], line.get("logger")) for line in lines] == [
        ("info", "replica placed", None),
        ("error", "kopf failed", "kopf.activities"),
        ("warning", "odd request", "aiohttp.server"),
        ("error", "reconcile failed", None),
    ]
    assert (lines[0]["cluster"], lines[0]["index"]) == ("eu", 3)
    assert "ZeroDivisionError" in lines[3]["exception"]


@pytest.mark.parametrize(("level", "count"), [("debug", 5), ("warning", 3), ("error", 2)])
def test_the_level_is_the_least_that_is_said(level: str, count: int) -> None:
    assert len(spoken(level)) == count


def test_of_a_long_text_of_somebody_elses_the_beginning_and_the_end_are_logged() -> None:
    told, failed = spoken("info", SPEAKING_LONG)

    assert (told["error"][:6], told["error"][-4:], told["count"]) == ("beginx", "xend", 3)
    assert len(told["error"]) <= LONGEST + 5
    assert failed["exception"].startswith("Traceback")
    assert failed["exception"].endswith("xend")
    assert len(failed["exception"]) <= LONGEST + 5


def test_for_eyes_a_failure_has_its_calls_and_not_what_these_were_given() -> None:
    said = logged(SPEAKING_TO_EYES)

    assert "reconcile failed" in said
    assert "Traceback (most recent call last)" in said
    assert "canary" not in said
    assert len(said) <= LONGEST + 1000
