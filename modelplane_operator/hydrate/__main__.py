"""The hydrator's command. What it is to do is in its arguments; in its environment are its credentials alone."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

# Read when the library is imported. Its other way of transfer takes gigabytes of memory, and mirrors do not speak it.
os.environ.update(
    HF_HUB_DISABLE_XET="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_DISABLE_IMPLICIT_TOKEN="1",  # noqa: S106 - a switch
    AWS_EC2_METADATA_DISABLED="true",
)

from modelplane_operator.hydrate.google_cloud_storage import GOOGLE, GoogleCloudStorage
from modelplane_operator.hydrate.manifest import Manifest
from modelplane_operator.hydrate.oci import oci
from modelplane_operator.hydrate.progress import EVERY, Api, Reporter, last_word
from modelplane_operator.hydrate.source import PermanentError, Source, TransientError
from modelplane_operator.hydrate.staging import Staging
from modelplane_operator.hydrate.web import Web, client

PERMANENT: Final = 3  # exit code: the Job starts no other pod
PASSING: Final = 1


def main() -> int:
    asked = _parsed().parse_args()
    os.umask(0)  # replicas of before write beside the weights, as whichever user they run
    word, staging = Path(asked.termination_message), Staging(Path(asked.volume), asked.content)
    api = Api(asked.server, Path(asked.account), asked.namespace, asked.job) if asked.job else None
    try:
        with Reporter(staging, api, asked.report_every) as reporter:
            listing = staging.held(asked.verified)
            if not listing or not staging.verify(listing):
                listing = staging.fill(_source(asked), listing)
            facts = {**reporter.facts(), "bytes": listing.size, "bytesPerSecond": 0}
        reporter.tell(facts)
        last_word(word, json.dumps(facts))
        return 0
    except PermanentError as error:
        return _failed(word, str(error), PERMANENT)
    except TransientError as error:
        return _failed(word, str(error), PASSING)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return _failed(word, "the volume is full before all files are there: raise sizeGiB", PERMANENT)
        told = f"the volume cannot be written by user {os.getuid()}: {error.strerror or type(error).__name__}"
        return _failed(word, told, PASSING)
    except Exception as error:  # noqa: BLE001 - its text may quote a token, or whatever a server has said
        return _failed(
            word, f"the hydrator has failed with {type(error).__name__}: the source may be at fault", PASSING
        )


def _source(asked: argparse.Namespace) -> Source:
    """What there is to have; raises PermanentError for what makes no sense."""
    patterns = {"allow": tuple(asked.allow), "ignore": tuple(asked.ignore)}
    anywhere = asked.any_address

    def given(name: str) -> str:
        return os.environ.get(name, "").strip()  # what comes of a file ends in a newline

    match asked.source:
        case "S3":
            names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
            keys = {name.lower(): value for name in names if (value := given(name))}
            where = (asked.bucket, asked.prefix, asked.region, asked.endpoint or "")
            return _class("s3.S3")(*where, **patterns, credentials=keys, anywhere=anywhere)
        case "GoogleCloudStorage":
            key, at = given("GOOGLE_CREDENTIALS"), asked.endpoint
            web = _web(f"gs://{asked.bucket}/{asked.prefix}".rstrip("/"), bool(key), anywhere)
            return GoogleCloudStorage(
                asked.bucket, web, asked.prefix, **patterns, credentials=key, endpoint=at or GOOGLE
            )
        case "OCI":
            file = given("REGISTRY_CREDENTIALS")
            web = _web(f"oci://{asked.reference}", bool(file), anywhere)
            return oci(asked.reference, web, insecure=asked.insecure, credentials=file, **patterns)
        case "HTTP":
            token = given("HTTP_TOKEN")
            web = _web(asked.manifest.partition("?")[0], bool(token), anywhere)
            headers = {"Authorization": f"Bearer {token}"} if token else None
            return Manifest(asked.manifest, web, asked.sha256, **patterns, headers=headers)
        case _:
            at = asked.endpoint or "https://huggingface.co"
            return _class("hugging_face.HuggingFace")(
                at, asked.repo, asked.revision, **patterns, token=given("HF_TOKEN") or None
            )


def _class(name: str) -> Any:
    """A source whose library takes a second and 40 MB: who does without does not import it."""
    module, _, what = name.partition(".")
    return getattr(import_module(f"modelplane_operator.hydrate.{module}"), what)


def _web(named: str, has_credentials: bool, anywhere: bool) -> Web:  # noqa: FBT001
    asked = "with what authSecret names" if has_credentials else "without credentials: name some in authSecret"
    return Web(named, asked, client(anywhere=anywhere))


def _failed(word: Path, message: str, code: int) -> int:
    sys.stdout.write(f"{message}\n")
    last_word(word, message)
    return code


def _parsed() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="modelplane_operator.hydrate", description="Fill a volume with weights.")
    parser.add_argument("--volume", required=True, help="the folder to fill")
    parser.add_argument("--content", required=True, help="what it is called that is asked for, in the marker")
    parser.add_argument("--verified", default="", help="what the list of files hashes to that was verified before")
    known = ("HuggingFace", "S3", "GoogleCloudStorage", "OCI", "HTTP")
    parser.add_argument("--source", choices=known, default=known[0])
    parser.add_argument("--repo", default="", help="on Hugging Face")
    parser.add_argument("--bucket", default="")
    parser.add_argument("--prefix", default="", help="of the names in a bucket")
    parser.add_argument("--region", default="us-east-1", help="of a bucket of S3")
    parser.add_argument("--reference", default="", help="of an artifact: REGISTRY/NAME:TAG")
    parser.add_argument("--insecure", action="store_true", help="ask the registry without TLS")
    parser.add_argument("--manifest", default="", help="address of a manifest")
    parser.add_argument("--sha256", default="", help="what the manifest hashes to")
    parser.add_argument("--revision", help="on Hugging Face: branch, tag or commit")
    parser.add_argument("--allow", action="append", default=[], help="a pattern of files to have")
    parser.add_argument("--ignore", action="append", default=[], help="a pattern of files to leave out")
    parser.add_argument("--endpoint", help="where the source answers, if it is not where everybody's is")
    parser.add_argument("--any-address", action="store_true", help="have files from this very machine too: for tests")
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
