"""The three ways to ask an engine for text: OpenAI chat, OpenAI completions, Anthropic messages; one table row each."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import orjson

from localfleet.engine.answers import Answer, Ask, Call, split
from localfleet.kubeclient import Manifest

Frames = Iterable[bytes]


class RequestError(Exception):
    """A request that the engine declines: HTTP status, error type, message, and the parameter at fault."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one API reads a request and writes an answer, whole or as the frames of a stream."""

    parse: Callable[[Manifest], Ask]
    whole: Callable[[Answer], Manifest]
    opening: Callable[[Answer], Frames]
    piece: Callable[[Answer, str], bytes]
    closing: Callable[[Answer, Ask], Frames]
    refusal: Callable[[RequestError], Manifest]


def parse_body(payload: bytes) -> Manifest:
    """The JSON object of a request's body; raises RequestError."""
    try:
        body = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise RequestError(
            400, "Bad Request", f"[{{'type': 'json_invalid', 'msg': 'JSON decode error: {error}'}}]"
        ) from error
    if not isinstance(body, dict):
        raise RequestError(
            400, "Bad Request", "[{'type': 'model_attributes_type', 'msg': 'the body must be an object'}]"
        )
    return body  # pyright: ignore[reportUnknownVariableType] - keys of a JSON object are strings


def openai_error(refusal: RequestError) -> Manifest:
    """vLLM's error body."""
    return {"error": {"message": refusal.message, "type": refusal.kind, "param": refusal.param, "code": refusal.status}}


def anthropic_error(refusal: RequestError) -> Manifest:
    """Anthropic's error body."""
    kinds = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}
    return {"type": "error", "error": {"type": kinds.get(refusal.status, "api_error"), "message": refusal.message}}


def count_tokens(body: Manifest) -> Manifest:
    """Anthropic's count of a request's input."""
    return {"input_tokens": len(split(_parse_messages(body).prompt))}


def _field(body: Manifest, name: str, kind: type | tuple[type, ...], *, needed: bool = False) -> Any:
    value = body.get(name)
    if value is None:
        if needed:
            raise RequestError(400, "Bad Request", f"[{{'type': 'missing', 'loc': ('body', '{name}')}}]", name)
        return None
    # bool is an int to Python, and is not one to an API
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise RequestError(400, "Bad Request", f"[{{'type': 'invalid', 'loc': ('body', '{name}')}}]", name)
    return value


def _ask(body: Manifest, prompt: str, *limits: str, call: Call | None = None, tool_choice: str = "") -> Ask:
    limit = next((value for name in limits if (value := _field(body, name, int)) is not None), None)
    if limit is not None and limit < 1:
        raise RequestError(400, "BadRequestError", f"{limits[0]} must be at least 1, got {limit}.", limits[0])
    options: Manifest = _field(body, "stream_options", dict) or {}
    return Ask(
        model=_field(body, "model", str),
        prompt=prompt,
        max_tokens=limit,
        stream=bool(_field(body, "stream", bool)),
        include_usage=bool(options.get("include_usage")),
        exact_length=bool(body.get("ignore_eos")),
        call=call,
        tool_choice=tool_choice,
    )


def _texts(content: Any) -> Iterable[str]:
    """The text in a message's content, which is a string or a list of typed parts; other parts are passed over."""
    if isinstance(content, str):
        yield content
    if isinstance(content, list):
        for part in filter(_is_object, cast(list[Any], content)):
            yield from _texts(part.get("text") or part.get("content"))


def _said(messages: list[Any]) -> str:
    return "\n".join(text for message in filter(_is_object, messages) for text in _texts(message.get("content")))


def _is_object(value: Any) -> TypeGuard[Manifest]:
    return isinstance(value, dict)


_NOTHING: Manifest = {}
Offered = list[tuple[str, Manifest]]


def _call(offered: Offered, choice: Any, messages: list[Any], prompt: str) -> Call | None:
    """The tool that is called: the one that was chosen, else the first, and none once a tool has answered.

    `offered` are names with the schemas of their arguments. What a tool needs gets the last word of the prompt.
    """
    last = next(filter(_is_object, reversed(messages)), _NOTHING)
    parts = [
        last,
        *filter(_is_object, cast(list[Any], last.get("content")) if isinstance(last.get("content"), list) else []),
    ]
    if not offered or choice == "none" or any("tool_call_id" in part or "tool_use_id" in part for part in parts):
        return None
    name, schema = next((one for one in offered if one[0] == choice), offered[0])
    needed: list[str] = schema.get("required") or []
    return Call(name, orjson.dumps(dict.fromkeys(needed, (prompt.split() or [""])[-1])).decode())


def _tools(body: Manifest) -> list[Manifest]:
    tools: list[Any] = _field(body, "tools", list) or []
    if not all(map(_is_object, tools)):
        raise RequestError(400, "Bad Request", "[{'type': 'invalid', 'loc': ('body', 'tools')}]", "tools")
    return tools


def _name(tool: Manifest) -> str:
    return _field(tool, "name", str, needed=True)


def _parse_chat(body: Manifest) -> Ask:
    messages: list[Any] = _field(body, "messages", list, needed=True)
    said = _said(messages)
    functions = [_field(tool, "function", dict, needed=True) for tool in _tools(body)]
    choice = body.get("tool_choice")
    chosen = _name(_field(choice, "function", dict, needed=True)) if _is_object(choice) else choice
    offered: Offered = [(_name(one), one.get("parameters") or _NOTHING) for one in functions]
    call = _call(offered, chosen, messages, said)
    wanted = "" if not offered or chosen == "none" else chosen or "auto"
    return _ask(body, said, "max_completion_tokens", "max_tokens", call=call, tool_choice=wanted)


def _parse_completion(body: Manifest) -> Ask:
    prompt = _field(body, "prompt", (str, list), needed=True)
    text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
    return _ask({"max_tokens": 16, **body}, text, "max_tokens")  # 16 is the API's own default here, and only here


def _parse_messages(body: Manifest) -> Ask:
    system = "\n".join(_texts(body.get("system")))
    messages: list[Any] = _field(body, "messages", list, needed=True)
    said = f"{system}\n{_said(messages)}"
    choice: Manifest = _field(body, "tool_choice", dict) or {}
    offered: Offered = [(_name(one), one.get("input_schema") or _NOTHING) for one in _tools(body)]
    chosen = choice.get("name") or choice.get("type") or "auto"
    call = _call(offered, chosen, messages, said)
    wanted = "" if not offered or chosen == "none" else chosen
    return _ask(body, said, "max_tokens", call=call, tool_choice=wanted)


def _usage(answer: Answer) -> Manifest:
    written = len(answer.tokens)
    total = answer.prompt_tokens + written
    return {"prompt_tokens": answer.prompt_tokens, "completion_tokens": written, "total_tokens": total}


def _data(value: Manifest) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _event(value: Manifest) -> bytes:
    return b"event: " + value["type"].encode() + b"\n" + _data(value)


def _openai(answer: Answer, kind: str, prefix: str, **rest: Any) -> Manifest:
    return {"id": f"{prefix}-{answer.id}", "object": kind, "created": answer.created, "model": answer.model, **rest}


def _chat_choice(answer: Answer) -> Manifest:
    message: Manifest = {"role": "assistant", "content": answer.text, "tool_calls": []}
    if answer.call is not None:
        function = {"name": answer.call.name, "arguments": answer.call.arguments}
        message |= {
            "content": None,
            "tool_calls": [{"id": f"call-{answer.id}", "type": "function", "function": function}],
        }
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(answer)}


def _finish(answer: Answer) -> str:
    return answer.finish if answer.call is None else "tool_calls"


def _chat_opening(answer: Answer) -> Frames:
    yield _chat_chunk(answer, _delta({"role": "assistant", "content": "" if answer.call is None else None}))
    if answer.call is not None:
        function = {"name": answer.call.name, "arguments": ""}
        called = {"index": 0, "id": f"call-{answer.id}", "type": "function", "function": function}
        yield _chat_chunk(answer, _delta({"tool_calls": [called]}))


def _chat_piece(answer: Answer, token: str) -> bytes:
    if answer.call is None:
        return _chat_chunk(answer, _delta({"content": token}))
    return _chat_chunk(answer, _delta({"tool_calls": [{"index": 0, "function": {"arguments": token}}]}))


def _text_choice(text: str, finish: str | None) -> Manifest:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}


def _chat_chunk(answer: Answer, choices: list[Manifest], **rest: Any) -> bytes:
    return _data(_openai(answer, "chat.completion.chunk", "chatcmpl", choices=choices, **rest))


def _delta(delta: Manifest, finish: str | None = None) -> list[Manifest]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]


def _text_chunk(answer: Answer, choices: list[Manifest], **rest: Any) -> bytes:
    return _data(_openai(answer, "text_completion", "cmpl", choices=choices, **rest))


def _openai_closing(
    chunk: Callable[..., bytes], final: Callable[[Answer], list[Manifest]]
) -> Callable[[Answer, Ask], Frames]:
    def closing(answer: Answer, ask: Ask) -> Frames:
        yield chunk(answer, final(answer))
        if ask.include_usage:
            yield chunk(answer, [], usage=_usage(answer))
        yield b"data: [DONE]\n\n"

    return closing


_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


def _stop_reason(answer: Answer) -> str:
    return _STOP_REASONS[answer.finish] if answer.call is None else "tool_use"


def _block(answer: Answer, text: str, arguments: Any) -> Manifest:
    if answer.call is None:
        return {"type": "text", "text": text}
    return {"type": "tool_use", "id": f"toolu_{answer.id}", "name": answer.call.name, "input": arguments}


def _whole_message(answer: Answer) -> Manifest:
    arguments = orjson.loads(answer.call.arguments) if answer.call is not None else None
    return _message(answer, [_block(answer, answer.text, arguments)], _stop_reason(answer), len(answer.tokens))


def _message(answer: Answer, content: list[Manifest], stop: str | None, written: int) -> Manifest:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": written},
    }


def _message_opening(answer: Answer) -> Frames:
    yield _event({"type": "message_start", "message": _message(answer, [], None, 0)})
    yield _event({"type": "content_block_start", "index": 0, "content_block": _block(answer, "", {})})


def _message_piece(answer: Answer, token: str) -> bytes:
    said = {"type": "text_delta", "text": token}
    called = {"type": "input_json_delta", "partial_json": token}
    return _event({"type": "content_block_delta", "index": 0, "delta": said if answer.call is None else called})


def _message_closing(answer: Answer, ask: Ask) -> Frames:
    del ask
    yield _event({"type": "content_block_stop", "index": 0})
    delta = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": len(answer.tokens)}})
    yield _event({"type": "message_stop"})


DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": Dialect(
        parse=_parse_chat,
        whole=lambda answer: _openai(
            answer, "chat.completion", "chatcmpl", choices=[_chat_choice(answer)], usage=_usage(answer)
        ),
        opening=_chat_opening,
        piece=_chat_piece,
        closing=_openai_closing(_chat_chunk, lambda answer: _delta({}, _finish(answer))),
        refusal=openai_error,
    ),
    "/v1/completions": Dialect(
        parse=_parse_completion,
        whole=lambda answer: _openai(
            answer, "text_completion", "cmpl", choices=[_text_choice(answer.text, answer.finish)], usage=_usage(answer)
        ),
        opening=lambda answer: [],
        piece=lambda answer, token: _text_chunk(answer, [_text_choice(token, None)]),
        closing=_openai_closing(_text_chunk, lambda answer: [_text_choice("", answer.finish)]),
        refusal=openai_error,
    ),
    "/v1/messages": Dialect(
        parse=_parse_messages,
        whole=_whole_message,
        opening=_message_opening,
        piece=_message_piece,
        closing=_message_closing,
        refusal=anthropic_error,
    ),
}
