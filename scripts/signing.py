"""Who made a release, and of what: its provenance, and signatures that cosign verifies with a public key.

The provenance is a statement of SLSA 1.0 about every file of the release. With a key it comes in a signed envelope
(DSSE), and beside each file lies a signature of its own.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from modelplane_operator import __version__
from scripts import licences

STATEMENT: Final = "application/vnd.in-toto+json"
PASSWORD: Final = "SIGNING_PASSWORD"  # noqa: S105 - the name of a variable


class SigningError(Exception):
    """Nothing is signed; the message says why."""


def attest(folder: Path, names: Sequence[str], root: Path, key: Path | None) -> Sequence[str]:
    """Write the provenance of these files, and with a key their signatures; return the names of what was written."""
    said = statement(folder, names, root)
    if key is None:
        unsigned = f"modelplane-operator-{__version__}.provenance.json"
        (folder / unsigned).write_bytes(said)
        return (unsigned,)
    signing, signed = read_key(key), f"modelplane-operator-{__version__}.intoto.jsonl"
    (folder / signed).write_bytes(envelope(said, signing))
    for name in (*names, signed):
        (folder / f"{name}.sig").write_text(_signature(signing, (folder / name).read_bytes()))
    return (signed, *(f"{name}.sig" for name in (*names, signed)))


def statement(folder: Path, names: Iterable[str], root: Path) -> bytes:
    """Return the statement: which files, from which commit, with which packages. It carries no time."""
    subjects = [{"name": name, "digest": {"sha256": licences.sha256(folder / name)}} for name in sorted(names)]
    commit = _git(root, "rev-parse", "HEAD")
    changed = bool(_git(root, "status", "--porcelain"))
    source = {"uri": f"git+{os.environ.get('SOURCE_URI', 'file:///modelplane')}", "digest": {"gitCommit": commit}}
    packages = [
        {"uri": f"pkg:pypi/{one.name}@{one.version}", "digest": {"sha256": hashed}}
        for one in licences.packages()
        for hashed in one.hashes
    ]
    predicate = {
        "buildDefinition": {
            "buildType": "urn:modelplane:make-release:1",
            "externalParameters": {"version": __version__, "source": source, "uncommittedChanges": changed},
            "resolvedDependencies": [source, *packages],
        },
        "runDetails": {"builder": {"id": os.environ.get("BUILDER_ID", "urn:modelplane:builder:unnamed")}},
    }
    body = {"_type": "https://in-toto.io/Statement/v1", "subject": subjects}
    body |= {"predicateType": "https://slsa.dev/provenance/v1", "predicate": predicate}
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def envelope(said: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a statement in a signed envelope, as one line of JSON."""
    signature = _signature(key, encoded(said))
    body = {"payloadType": STATEMENT, "payload": base64.b64encode(said).decode(), "signatures": [{"sig": signature}]}
    return json.dumps(body).encode() + b"\n"


def encoded(said: bytes) -> bytes:
    """Return what is signed of an envelope: its type and its content, each with its length."""
    return b"DSSEv1 %d %s %d %s" % (len(STATEMENT), STATEMENT.encode(), len(said), said)


def _signature(key: ec.EllipticCurvePrivateKey, content: bytes) -> str:
    return base64.b64encode(key.sign(content, ec.ECDSA(SHA256()))).decode()


def read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    password = os.environ.get(PASSWORD, "").encode() or None
    try:
        found: Any = load_pem_private_key(file.read_bytes(), password)
    except OSError as error:
        raise SigningError(f"the signing key {file} cannot be read: {error.strerror}") from error
    except (TypeError, ValueError) as error:
        raise SigningError(
            f"{file} is no private key in PEM, or {PASSWORD} is not its password: docs/releases.md says how to make one"
        ) from error
    if not isinstance(found, ec.EllipticCurvePrivateKey) or not isinstance(found.curve, ec.SECP256R1):
        raise SigningError(f"{file} is no key of the curve P-256, which cosign verifies")
    return found


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SigningError("this is no checkout of git, so that nobody can say of which commit the release is")
    return done.stdout.strip()
