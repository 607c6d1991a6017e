"""The hydrator's command line. Arguments say what to do; the environment holds only credentials."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

# Read when the library is imported. Its Xet transfer takes gigabytes of memory, and mirrors do not support it.
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

PERMANENT: Final = 3  # exit code after which the Job starts no other pod
"""Exit code of an error that a new pod would repeat, such as a missing repository."""
PASSING: Final = 1
"""Exit code of an error that a new pod may not have."""


def main() -> int:
    """Fill the volume, report the progress, and return the exit code."""
    arguments = _parser().parse_args()
    os.umask(0)  # replicas of earlier versions write beside the weights as another user
    message_file, staging = Path(arguments.termination_message), Staging(Path(arguments.volume), arguments.content)
    api = Api(arguments.server, Path(arguments.account), arguments.namespace, arguments.job) if arguments.job else None
    try:
        with Reporter(staging, api, arguments.report_every) as reporter:
            # Verified files are complete without their source, which may be unreachable or deleted by now.
            listing = staging.read_list(arguments.verified)
            if not listing or not staging.verify(listing):
                listing = staging.fill(_source(arguments), listing)
            # The last report comes after the thread has stopped, so that no older one follows it.
            progress = {**reporter.facts(), "bytes": listing.size, "bytesPerSecond": 0}
        reporter.tell(progress)
        last_word(message_file, json.dumps(progress))
        return 0
    except PermanentError as error:
        return _fail(message_file, str(error), PERMANENT)
    except TransientError as error:
        return _fail(message_file, str(error), PASSING)
    # Sources translate their own OSErrors, so this one is of the volume.
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return _fail(message_file, "the volume is full before all files are there: raise sizeGiB", PERMANENT)
        message = f"the volume cannot be written by user {os.getuid()}: {error.strerror or type(error).__name__}"
        return _fail(message_file, message, PASSING)
    except Exception as error:  # noqa: BLE001 - its text may quote a token, or anything that a server has sent
        return _fail(
            message_file, f"the hydrator has failed with {type(error).__name__}: the source may be at fault", PASSING
        )


def _source(arguments: argparse.Namespace) -> Source:
    """Return the source. Raise PermanentError for invalid arguments."""
    patterns = {"allow": tuple(arguments.allow), "ignore": tuple(arguments.ignore)}
    any_address = arguments.any_address

    def read_variable(name: str) -> str:
        """Return a credential from the environment; empty if it is not set."""
        return os.environ.get(name, "").strip()  # the content of a file ends with a newline

    match arguments.source:
        case "S3":
            names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
            keys = {name.lower(): value for name in names if (value := read_variable(name))}
            location = (arguments.bucket, arguments.prefix, arguments.region, arguments.endpoint or "")
            return _import_class("s3.S3")(*location, **patterns, credentials=keys, anywhere=any_address)
        case "GoogleCloudStorage":
            key, address = read_variable("GOOGLE_CREDENTIALS"), arguments.endpoint
            web = _web_client(f"gs://{arguments.bucket}/{arguments.prefix}".rstrip("/"), bool(key), any_address)
            return GoogleCloudStorage(
                arguments.bucket, web, arguments.prefix, **patterns, credentials=key, endpoint=address or GOOGLE
            )
        case "OCI":
            file = read_variable("REGISTRY_CREDENTIALS")
            web = _web_client(f"oci://{arguments.reference}", bool(file), any_address)
            return oci(arguments.reference, web, insecure=arguments.insecure, credentials=file, **patterns)
        case "HTTP":
            token = read_variable("HTTP_TOKEN")
            web = _web_client(arguments.manifest.partition("?")[0], bool(token), any_address)
            headers = {"Authorization": f"Bearer {token}"} if token else None
            return Manifest(arguments.manifest, web, arguments.sha256, **patterns, headers=headers)
        case _:
            address = arguments.endpoint or "https://huggingface.co"
            return _import_class("hugging_face.HuggingFace")(
                address, arguments.repo, arguments.revision, **patterns, token=read_variable("HF_TOKEN") or None
            )


def _import_class(name: str) -> Any:
    """Return a source class by name. Its library takes a second and 40 MB to import, so only the needed one is."""
    module, _, class_name = name.partition(".")
    return getattr(import_module(f"modelplane_operator.hydrate.{module}"), class_name)


def _web_client(label: str, has_credentials: bool, anywhere: bool) -> Web:  # noqa: FBT001
    """Return an HTTP client for a source, with the name and the hint of its error messages."""
    hint = "with the credentials of authSecret" if has_credentials else "without credentials: name some in authSecret"
    return Web(label, hint, client(anywhere=anywhere))


def _fail(path: Path, message: str, code: int) -> int:
    """Write the termination message and return the exit code."""
    sys.stdout.write(f"{message}\n")
    last_word(path, message)
    return code


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="modelplane_operator.hydrate", description="Fill a volume with weights.")
    parser.add_argument("--volume", required=True, help="the folder to fill")
    parser.add_argument("--content", required=True, help="what it is called that is asked for, in the marker")
    parser.add_argument("--verified", default="", help="what the list of files hashes to that was verified before")
    sources = ("HuggingFace", "S3", "GoogleCloudStorage", "OCI", "HTTP")
    parser.add_argument("--source", choices=sources, default=sources[0])
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
    os._exit(code)  # do not wait for running transfers; the next process continues them
