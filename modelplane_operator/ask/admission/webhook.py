"""The admission webhook: reviews of objects, and the certificate that it presents. Kopf calls it through `server`.

Every operator serves, leader or not, from its own informers. An object that cannot be reviewed in time is admitted,
because the reconcile checks everything again. The leader creates the certificates, and has API servers trust them.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import ssl
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from kubeloop.client.certificates import secret_data
from kubeloop.errors import AlreadyExists, ClientError, Conflict
from kubeloop.loop import Clients, Controller
from kubeloop.objects import Key, Manifest, is_terminating, section
from kubeloop.repeats import Repeats
from kubeloop.types import SECRET, VALIDATING_WEBHOOK
from kubeloop.verdict import NOTHING, Verdict
from modelplane_operator.api import labels, names
from modelplane_operator.ask.admission.rules.certificates import (
    ServingCertificate,
    in_use,
    read_certificates,
    read_client_authorities,
    rotation,
)
from modelplane_operator.ask.admission.rules.configuration import find_differences
from modelplane_operator.ask.answers.documents import QUESTION
from modelplane_operator.ask.answers.questions import BUSY, QuestionError

PATIENCE: Final = 1.5  # API servers wait for two
"""Seconds that a review may take."""
AT_ONCE: Final = 16
"""Number of concurrent reviews; further objects are admitted at once."""
TRUST_SECONDS: Final = 30.0
"""Seconds between checks of certificates and configuration."""
ANSWERED: Final = 422  # an API server accepts only an error from a webhook that rejects
"""HTTP status of an answered Question."""
CONFIGURATION: Final = Key("", names.ADMISSION_WEBHOOK)
"""Key of the ValidatingWebhookConfiguration."""

log = structlog.get_logger()


@dataclass(slots=True)
class Webhook:
    """Reviews objects when users create and update them."""

    listen: tuple[str, int]
    """Address and port."""
    name: str
    """Host name by which API servers reach it."""
    clients: Clients
    """Clients of the hub and the clusters."""
    controllers: tuple[Controller[Any, Any], ...]
    """Controllers that have a review."""
    tls: ssl.SSLContext = field(default_factory=lambda: ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), init=False)
    """TLS context of the server, which always has the current certificate."""
    altered: tuple[str, ...] = field(default=(), init=False)
    """Foreign changes to its configuration, as the leader last read it."""
    _certificate_in_use: int | None = field(default=None, init=False)
    """Number of the certificate in use."""
    _running: int = field(default=0, init=False)
    """Number of running reviews."""
    paths: tuple[bytes, ...] | None = field(default=None, init=False)
    """URL paths of all certificates; None until they are read again."""
    _secret_changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when a Secret changes."""
    _repeats: Repeats = field(default_factory=Repeats, init=False)
    """Limits repeated log lines."""

    async def read_paths(self) -> tuple[bytes, ...]:
        """Return the URL paths that API servers use, from the informer."""
        self.paths = tuple(certificate.path.encode() for certificate in read_certificates(self._secrets()))
        return self.paths

    async def judge(self, controller: Controller[Any, Any], new: Manifest, old: Manifest | None) -> Verdict:
        """Return the verdict on an object; an empty one if the review is not possible in time.

        Objects that are being deleted or that the operator owns are not reviewed. Neither is any object before the
        hub's informers are synced, because a missing object may just not be listed yet.
        """
        review = controller.review
        if review is None or not new or is_terminating(new) or labels.owner_uid(new) or not self.clients.hub.synced:
            return NOTHING
        if self._running >= AT_ONCE:
            return NOTHING
        self._running += 1
        try:
            async with asyncio.timeout(PATIENCE):
                parse = controller.kind.parse
                return await review(parse(new), parse(old) if old else None, self.clients)
        except ValidationError:  # the reconcile reports unreadable objects
            return NOTHING
        except (ClientError, TimeoutError) as error:
            log.info("not reviewed in time", kind=controller.type.kind, error=type(error).__name__)
            return NOTHING
        except Exception as error:
            if so_far := self._repeats.worth((controller.type.kind, type(error))):
                log.error("review failed", kind=controller.type.kind, so_far=so_far, exc_info=error)
            return NOTHING
        finally:
            self._running -= 1

    async def answer(self, review: Manifest) -> Manifest:
        """Return an AdmissionReview with the answer to a Question.

        It is always a rejection, so that no Question is stored.
        """
        request = dict(section(review, "request"))
        try:
            answer_question = next((item.answers for item in self.controllers if item.answers), None)
            if answer_question is None:
                raise QuestionError("this operator does not answer questions: try again, or see its log", BUSY)
            result = await answer_question(request, self.clients)
            status: dict[str, Any] = {"code": ANSWERED, "reason": "Answered", "message": result.words}
            status["details"] = {"causes": [{"reason": "Answer", "message": json.dumps(result.document)}]}
        except QuestionError as error:
            status = {"code": error.code, "message": str(error)}
        except Exception as error:
            if so_far := self._repeats.worth(("question", type(error))):
                log.error("question failed", so_far=so_far, exc_info=error)
            status = {"code": 500, "message": "the operator failed to answer this question: see its log"}
        response = {"uid": request.get("uid"), "allowed": False, "status": status}
        return {"apiVersion": review.get("apiVersion"), "kind": "AdmissionReview", "response": response}

    def to_show(self) -> ServingCertificate | None:
        """Return the certificate to present now, if it is not in use yet."""
        certificate = in_use(read_certificates(self._secrets()), self.clients.now())
        return certificate if certificate is not None and certificate.number != self._certificate_in_use else None

    def show(self, certificate: ServingCertificate) -> None:
        """Present a certificate on new connections. Must run on the event loop that does the handshakes."""
        with tempfile.NamedTemporaryFile() as file:  # readable only by the operator
            Path(file.name).write_text(certificate.certificate + certificate.key, encoding="ascii")
            try:
                self.tls.load_cert_chain(file.name)
            except ssl.SSLError as error:
                log.warning("certificate not usable", secret=str(certificate.secret), error=error.reason)
                return
        self._certificate_in_use = certificate.number
        log.info("admission certificate shown", secret=str(certificate.secret))

    def _secrets(self) -> tuple[Manifest, ...]:
        """Return the Secrets in the informer."""
        informer = self.clients.hub.find(SECRET)
        return tuple(informer) if informer else ()

    def on_secret_event(self, _: Key, __: Manifest | None, ___: Manifest | None) -> None:
        """Note that a Secret has changed."""
        self.paths = None
        self._secret_changed.set()

    # Leading ---------------------------------------------------------------------------------------------------------

    async def keep_trusted(self) -> None:
        """Rotate certificates and have API servers trust them; runs while leading."""
        self.altered = ()  # from an earlier term as leader
        while True:
            try:
                await self._rotate()
            except Conflict:
                pass  # another client wrote: the next round reads the current object
            except ClientError as error:
                if so_far := self._repeats.worth(("trust", type(error))):
                    log.warning("admission webhook not kept", so_far=so_far, error=str(error))
            self._secret_changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(TRUST_SECONDS):
                    await self._secret_changed.wait()

    async def _rotate(self) -> None:
        """Create and delete certificates, and update the configuration's trust bundle and path."""
        kube = self.clients.hub.kube
        configuration = await kube.find(VALIDATING_WEBHOOK, CONFIGURATION)
        if configuration is None:
            self._check_configuration({})
            return  # the webhook is not configured
        self._check_configuration(configuration)
        changes = rotation(self._secrets(), self.name, self.clients.now())
        if changes.make is not None:
            data = secret_data(changes.make.certificate, None)
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": changes.make.metadata}
            self.clients.may_write()
            try:
                created = await kube.create({**secret, "type": "kubernetes.io/tls", "data": {**data}})
            except AlreadyExists:
                return  # the watch will deliver it
            if (informer := self.clients.hub.find(SECRET)) is not None:
                informer.on_write(created)
        if changed := read_client_authorities(configuration, read_certificates(self._secrets()), self.clients.now()):
            self.clients.may_write()
            await kube.replace(changed)
        for certificate in changes.drop:
            self.clients.may_write()
            await kube.delete(SECRET, certificate.secret, uid=certificate.uid)

    def _check_configuration(self, configuration: Manifest) -> None:
        """Store and log foreign changes of the configuration.

        The operator may only write its trust bundle and path.
        """
        groups = {QUESTION.group, *(controller.type.group for controller in self.controllers)}
        old, self.altered = self.altered, find_differences(configuration, groups, self.name)
        if self.altered and self.altered != old:
            log.error("webhook configuration altered", found="; ".join(self.altered))


def is_webhook_path(path: str, paths: Iterable[bytes]) -> bool:
    """True if a path is one of the secret ones, which only API servers know."""
    return any(hmac.compare_digest(path.encode(errors="replace"), secret_path) for secret_path in paths)


def is_question(review: Any) -> bool:
    """True if an AdmissionReview is of a Question, which Kopf has no handler for."""
    match review:
        case {"request": {"resource": {"group": "modelplane.ai", "resource": QUESTION.plural}}}:
            return True
        case _:
            return False


def webhook(
    listen: tuple[str, int] | None,
    name: str,
    clients: Clients,
    controllers: Iterable[Controller[Any, Any]],
    authorities: Path | None = None,
) -> Webhook | None:
    """Return the webhook; None without an address to listen on.

    `authorities` are the CAs that sign the client certificates of API servers.
    """
    if listen is None:
        return None
    created = Webhook(listen, name, clients, tuple(controller for controller in controllers if controller.review))
    if authorities is not None:
        created.tls.load_verify_locations(authorities)
        created.tls.verify_mode = ssl.CERT_REQUIRED
    if (secrets := clients.hub.find(SECRET)) is not None:
        secrets.subscribe(created.on_secret_event)
    return created
