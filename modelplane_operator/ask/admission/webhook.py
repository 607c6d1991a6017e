"""The admission webhook: what it says of objects, and the certificate that it shows. Kopf asks, in `admission_server`.

Every operator serves, leader or not, with what its own watches have seen. What is not known in time is allowed: the
reconcile judges everything again. The leader makes the certificates, and has API servers trust them.
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
from modelplane_operator.ask.admission.rules.certificates import Shown, asking, in_use, known, rotation
from modelplane_operator.ask.admission.rules.configuration import altered
from modelplane_operator.ask.answers.documents import QUESTION
from modelplane_operator.ask.answers.questions import BUSY, QuestionAnswer, QuestionError

PATIENCE: Final = 1.5  # API servers wait for two seconds
AT_ONCE: Final = 16  # reviews; whoever comes then is allowed at once
TRUST_SECONDS: Final = 30.0
ANSWERED: Final = 422  # an API server takes no other than an error from a webhook that refuses
CONFIGURATION: Final = Key("", names.ADMISSION_WEBHOOK)

log = structlog.get_logger()


@dataclass(slots=True)
class Webhook:
    """Reviews of objects as they are written."""

    listen: tuple[str, int]
    name: str
    """By which API servers reach it."""
    clients: Clients
    controllers: tuple[Controller[Any, Any], ...]
    """Those with a review."""
    tls: ssl.SSLContext = field(default_factory=lambda: ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), init=False)
    altered: tuple[str, ...] = field(default=(), init=False)
    """What somebody else has said in its configuration, as the leader last read it."""
    _shown: int | None = field(default=None, init=False)
    _running: int = field(default=0, init=False)
    paths: tuple[bytes, ...] | None = field(default=None, init=False)
    """Of all certificates; None until they are read again."""
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _repeats: Repeats = field(default_factory=Repeats, init=False)

    async def read_paths(self) -> tuple[bytes, ...]:
        """Return where API servers ask, as the watch knows it."""
        self.paths = tuple(one.path.encode() for one in known(self._secrets()))
        return self.paths

    async def judge(self, controller: Controller[Any, Any], new: Manifest, old: Manifest | None) -> Verdict:
        """What the review says; nothing when it cannot, and of what is on its way out or the operator's own.

        While the hub has not been seen, what is not known is not missing.
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
        except ValidationError:  # the reconcile tells what nobody can read
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
        """An AdmissionReview of a Question with the answer, which is a refusal: so no question is ever stored."""
        request = dict(section(review, "request"))
        try:
            found = await self._answer(request)
            status: dict[str, Any] = {"code": ANSWERED, "reason": "Answered", "message": found.words}
            status["details"] = {"causes": [{"reason": "Answer", "message": json.dumps(found.document)}]}
        except QuestionError as error:
            status = {"code": error.code, "message": str(error)}
        except Exception as error:
            if so_far := self._repeats.worth(("question", type(error))):
                log.error("question failed", so_far=so_far, exc_info=error)
            status = {"code": 500, "message": "the operator failed on this question; its log says why"}
        response = {"uid": request.get("uid"), "allowed": False, "status": status}
        return {"apiVersion": review.get("apiVersion"), "kind": "AdmissionReview", "response": response}

    async def _answer(self, request: Manifest) -> QuestionAnswer:
        for one in self.controllers:
            if one.answers:
                return await one.answers(request, self.clients)
        raise QuestionError("nobody here answers questions", BUSY)

    def to_show(self) -> Shown | None:
        """Return the certificate whose turn it is, if it is not shown yet."""
        found = in_use(known(self._secrets()), self.clients.now())
        return found if found is not None and found.number != self._shown else None

    def show(self, certificate: Shown) -> None:
        """Show a certificate to all that connect from now on; on the loop that makes the handshakes."""
        with tempfile.NamedTemporaryFile() as file:  # which nobody else may read
            Path(file.name).write_text(certificate.certificate + certificate.key, encoding="ascii")
            try:
                self.tls.load_cert_chain(file.name)
            except ssl.SSLError as error:
                log.warning("certificate not usable", secret=str(certificate.secret), error=error.reason)
                return
        self._shown = certificate.number
        log.info("admission certificate shown", secret=str(certificate.secret))

    def _secrets(self) -> tuple[Manifest, ...]:
        seen = self.clients.hub.find(SECRET)
        return tuple(seen) if seen else ()

    def heard(self, _: Key, __: Manifest | None, ___: Manifest | None) -> None:
        """Some Secret has changed."""
        self.paths = None
        self._news.set()

    # Leading ---------------------------------------------------------------------------------------------------------

    async def keep_trusted(self) -> None:
        """Make certificates in time, and have API servers trust them; for the leader."""
        self.altered = ()  # of an earlier time as the leader
        while True:
            try:
                await self._rotate()
            except Conflict:
                pass  # somebody else wrote: what is there now is looked at next time
            except ClientError as error:
                if so_far := self._repeats.worth(("trust", type(error))):
                    log.warning("admission webhook not kept", so_far=so_far, error=str(error))
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(TRUST_SECONDS):
                    await self._news.wait()

    async def _rotate(self) -> None:
        kube = self.clients.hub.kube
        configuration = await kube.find(VALIDATING_WEBHOOK, CONFIGURATION)
        if configuration is None:
            self._look({})
            return  # nobody is to ask
        self._look(configuration)
        wanted = rotation(self._secrets(), self.name, self.clients.now())
        if wanted.make is not None:
            data = secret_data(wanted.make.certificate, None)
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": wanted.make.metadata}
            self.clients.may_write()
            try:
                self._note(await kube.create({**secret, "type": "kubernetes.io/tls", "data": {**data}}))
            except AlreadyExists:
                return  # the watch is about to tell
        if changed := asking(configuration, known(self._secrets()), self.clients.now()):
            self.clients.may_write()
            await kube.replace(changed)
        for one in wanted.drop:
            self.clients.may_write()
            await kube.delete(SECRET, one.secret, uid=one.uid)

    def _look(self, configuration: Manifest) -> None:
        """Take note of what the operator may not mend, as it may write no more there than whom to trust and where."""
        groups = {QUESTION.group, *(one.type.group for one in self.controllers)}
        before, self.altered = self.altered, altered(configuration, groups, self.name)
        if self.altered and self.altered != before:
            log.error("webhook configuration altered", found="; ".join(self.altered))

    def _note(self, secret: Manifest) -> None:
        if (seen := self.clients.hub.find(SECRET)) is not None:
            seen.written(secret)


def is_asked_at(path: str, paths: Iterable[bytes]) -> bool:
    """Return whether it is an API server that asks there, which alone knows where."""
    return any(hmac.compare_digest(path.encode(errors="replace"), one) for one in paths)


def is_question(review: Any) -> bool:
    """Whether an AdmissionReview is of a Question, which Kopf has no handler for."""
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
    """None where nobody is to be answered. `authorities`: who signs the certificates of API servers."""
    if listen is None:
        return None
    made = Webhook(listen, name, clients, tuple(one for one in controllers if one.review))
    if authorities is not None:
        made.tls.load_verify_locations(authorities)
        made.tls.verify_mode = ssl.CERT_REQUIRED
    if (secrets := clients.hub.find(SECRET)) is not None:
        secrets.subscribe(made.heard)
    return made
