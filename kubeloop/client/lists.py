"""Lists of objects, read page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from kubeloop.client.limits import format_size
from kubeloop.client.responses import Answers, check_namespace
from kubeloop.client.wire import JSON, Request, Wire
from kubeloop.errors import Expired
from kubeloop.objects import Manifest
from kubeloop.types import ResourceType

T = TypeVar("T")

BARE_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
PAGE_SECONDS = 60.0  # deadline of a page, which takes longer than other requests


class Listing(NamedTuple, Generic[T]):
    """The objects of a type at one version, or the results of reading them."""

    items: Sequence[T]
    version: str


class Lists:
    """Reads lists within the limits of a server."""

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
        size_of: Callable[[T], int] | None,
        first: bool = False,
    ) -> Listing[T]:
        """Read all pages, or only the first. `at_once` is the initial size of pages in objects; 0 means one page.

        A page that is too long is requested again with half as many objects, since objects may be large. A single
        object that is too long is an offence, while a full list that is too long is not, because we asked for it.
        """
        limits, operation = self._wire.limits, f"list {kind}"
        items, size, sent, tokens, smallest_page = list[T](), 0, 0, set[str](), at_once
        path, more = kind.path(namespace), dict[str, str]()
        while True:
            query = {**params, **more, **({"limit": str(at_once)} if at_once else {})}
            request = Request("list", str(kind), "GET", path, params=query, accept=BARE_LIST if bare else JSON)
            page = await self._wire.ask_within(limits.page, request, operation=operation, deadline=PAGE_SECONDS)
            sent += limits.page if page is None else len(page)
            if page is None and at_once > 1 and sent <= limits.sent:
                smallest_page = at_once = at_once // 2
                continue
            if page is None and not at_once:
                raise Expired(f"{operation}: its pages end while they are read, and without pages it is too long")
            if page is None:
                raise self._wire.misbehaves(
                    operation, f"the answer has more than the {format_size(limits.page)} that are allowed"
                )
            response = self._answers.object(
                await self._wire.objects(page, operation=operation, at_most=limits.page), operation
            )
            version, token = self._answers.place(response, operation)
            for item in self._answers.items(response, operation):
                check_namespace(item, kind, namespace, operation=operation)
                item["apiVersion"], item["kind"] = kind.api_version, kind.kind  # the items of built-in types lack them
                items.append(read(item))
                size += size_of(items[-1]) if size_of else 0
            size += 0 if size_of else len(page)
            if len(items) > limits.objects:
                raise self._wire.misbehaves(
                    operation, f"the list has more than the {limits.objects} objects that are allowed"
                )
            if size > limits.listing or sent > limits.sent:
                allowed = limits.listing if size > limits.listing else limits.sent
                raise self._wire.misbehaves(
                    operation, f"the list has more than the {format_size(allowed)} that are allowed"
                )
            if not token or first:
                return Listing(items, version)
            if token in tokens:
                raise self._wire.misbehaves(operation, "the list goes on where it has been before")
            if len(tokens) >= (pages := limits.pages(len(items), smallest_page)):
                raise self._wire.misbehaves(operation, f"the list has more than {pages} pages for {len(items)} objects")
            tokens.add(token)
            more = {"continue": token}
