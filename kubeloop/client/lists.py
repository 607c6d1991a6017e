"""Lists of one API server, page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from kubeloop.client.limits import shown
from kubeloop.client.responses import Answers, check_namespace
from kubeloop.client.wire import JSON, Request, Wire
from kubeloop.errors import Gone
from kubeloop.objects import Manifest
from kubeloop.types import ResourceType

T = TypeVar("T")

BARE_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
PAGE_SECONDS = 60.0  # a page of a large list takes longer than a write


class Listing(NamedTuple, Generic[T]):
    """All objects of a type at one version, or what was made of each."""

    items: Sequence[T]
    version: str


class Lists:
    """How lists are read within what a server may say."""

    def __init__(self, wire: Wire, answers: Answers) -> None:
        self._wire = wire
        self._answers = answers

    async def pages(
        self,
        kind: ResourceType,
        read: Callable[[Manifest], T],
        namespace: str,
        params: Mapping[str, str],
        at_once: int,
        *,
        bare: bool,
        kept: Callable[[T], int] | None,
        first: bool = False,
    ) -> Listing[T]:
        """All pages, or only the first, of so many objects at first; 0: all of them at once.

        A page that is too long is asked for again with half as many: an honest server may have large objects. One
        object that is too long is no honest server's; all of them at once may be, as it was we who asked for that.
        """
        limits, asked = self._wire.limits, f"list {kind}"
        items, size, sent, tokens, fewest = list[T](), 0, 0, set[str](), at_once
        path, more = kind.path(namespace), dict[str, str]()
        while True:
            asking = {**params, **more, **({"limit": str(at_once)} if at_once else {})}
            request = Request("list", str(kind), "GET", path, params=asking, accept=BARE_LIST if bare else JSON)
            page = await self._wire.ask_within(limits.page, request, asked=asked, deadline=PAGE_SECONDS)
            sent += limits.page if page is None else len(page)
            if page is None and at_once > 1 and sent <= limits.sent:
                fewest = at_once = at_once // 2
                continue
            if page is None and not at_once:
                raise Gone(f"{asked}: its pages end while they are read, and without pages it is too long")
            if page is None:
                raise self._wire.misbehaves(
                    asked, f"the answer has more than the {shown(limits.page)} that are allowed"
                )
            answer = self._answers.object(await self._wire.objects(page, asked=asked, at_most=limits.page), asked)
            version, token = self._answers.place(answer, asked)
            for item in self._answers.items(answer, asked):
                check_namespace(item, kind, namespace, asked=asked)
                item["apiVersion"], item["kind"] = kind.api_version, kind.kind  # lists of built-in types leave them out
                items.append(read(item))
                size += kept(items[-1]) if kept else 0
            size += 0 if kept else len(page)
            if len(items) > limits.objects:
                raise self._wire.misbehaves(
                    asked, f"the list has more than the {limits.objects} objects that are allowed"
                )
            if size > limits.listing or sent > limits.sent:
                allowed = limits.listing if size > limits.listing else limits.sent
                raise self._wire.misbehaves(asked, f"the list has more than the {shown(allowed)} that are allowed")
            if not token or first:
                return Listing(items, version)
            if token in tokens:
                raise self._wire.misbehaves(asked, "the list goes on where it has been before")
            if len(tokens) >= (pages := limits.pages(len(items), fewest)):
                raise self._wire.misbehaves(asked, f"the list has more than {pages} pages for {len(items)} objects")
            tokens.add(token)
            more = {"continue": token}
