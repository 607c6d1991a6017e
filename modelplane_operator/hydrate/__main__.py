"""The hydrator's command. What it is to do is in its arguments; in its environment is the token alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Final

# Read when the library is imported. Its other way of transfer takes gigabytes of memory, and mirrors do not speak it.
os.environ.update(
    HF_HUB_DISABLE_XET="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_DISABLE_IMPLICIT_TOKEN="1",  # noqa: S106 - a switch
)

from modelplane_operator.hydrate.hugging_face import HuggingFace
from modelplane_operator.hydrate.progress import EVERY, Api, Reporter, last_word
from modelplane_operator.hydrate.source import Broken, Refused
from modelplane_operator.hydrate.staging import Staging

PERMANENT: Final = 3  # exit code: the Job starts no other pod
PASSING: Final = 1


def main() -> int:
    asked = _parsed().parse_args()
    os.umask(0)  # engines write beside the weights, as whichever user they run
    word, staging = Path(asked.termination_message), Staging(Path(asked.volume), asked.content)
    source = HuggingFace(
        asked.endpoint, asked.repo, asked.revision, tuple(asked.allow), tuple(asked.ignore), os.environ.get("HF_TOKEN")
    )
    api = Api(asked.server, Path(asked.account), asked.namespace, asked.job) if asked.job else None
    try:
        if revision := staging.complete():
            last_word(word, json.dumps({"revision": revision}))
            return 0
        with Reporter(staging, api, asked.report_every) as reporter:
            listing = staging.fill(source)
            facts = {**reporter.facts(), "bytes": listing.size, "bytesPerSecond": 0}
        reporter.tell(facts)
        last_word(word, json.dumps(facts))
        return 0
    except Refused as error:
        return _failed(word, str(error), PERMANENT)
    except Broken as error:
        return _failed(word, str(error), PASSING)
    except OSError as error:
        told = f"the volume cannot be written by user {os.getuid()}: {error.strerror or type(error).__name__}"
        return _failed(word, told, PASSING)


def _failed(word: Path, message: str, code: int) -> int:
    sys.stdout.write(f"{message}\n")
    last_word(word, message)
    return code


def _parsed() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="modelplane_operator.hydrate", description="Fill a volume with weights.")
    parser.add_argument("--volume", required=True, help="the folder to fill")
    parser.add_argument("--content", required=True, help="what it is called that is asked for, in the marker")
    parser.add_argument("--repo", required=True)
    parser.add_argument("--revision", help="a branch, tag or commit (default: the repository's own)")
    parser.add_argument("--allow", action="append", default=[], help="a pattern of files to have")
    parser.add_argument("--ignore", action="append", default=[], help="a pattern of files to leave out")
    parser.add_argument("--endpoint", default="https://huggingface.co")
    parser.add_argument("--job", help="the Job to tell how far it is")
    parser.add_argument("--namespace", default="")
    parser.add_argument("--server", default="https://kubernetes.default.svc")
    parser.add_argument("--account", default="/var/run/secrets/kubernetes.io/serviceaccount")
    parser.add_argument("--report-every", type=float, default=EVERY)
    parser.add_argument("--termination-message", default="/dev/termination-log")
    return parser


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # transfers that go on are for the next process to end
