"""A service by its own model: requests are read and answers are written as botocore's description of it says.

So that a stand-in cannot take what AWS would refuse for its form, nor say what AWS never says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson
from botocore import xform_name
from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.validate import ParamValidator


class Refusal(Exception):  # noqa: N818 - what AWS calls an exception
    """An error of a service, by the name that its model has for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class RestJson:
    """Finds the operation that a request is, and calls the method of that name."""

    def __init__(self, service: str, target: object) -> None:
        model = ServiceModel(Loader().load_service_model(service, "service-2"), service)
        self._target = target
        self._routes = [
            (one.http["method"], re.compile(_pattern(one.http["requestUri"])), one)
            for one in map(model.operation_model, model.operation_names)
        ]

    def operation(self, method: str, path: str) -> str:
        found = self._find(method, path)
        return found[0].name if found else ""

    def answer(self, method: str, path: str, query: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        found = self._find(method, path)
        if found is None:
            return 404, {"x-amzn-ErrorType": "UnknownOperation"}, b"{}"
        operation, parts = found
        asked = _read(operation, parts, query, body)
        if operation.input_shape is not None:
            problems = ParamValidator().validate(asked, operation.input_shape)
            if problems.has_errors():
                message = orjson.dumps({"message": problems.generate_report()})
                return 400, {"x-amzn-ErrorType": "InvalidParameterException"}, message
        method_of: Callable[..., Mapping[str, Any]] | None = getattr(self._target, xform_name(operation.name), None)
        assert method_of is not None, f"the stand-in has no {operation.name}"
        try:
            said = method_of(**{xform_name(name): value for name, value in asked.items()})
        except Refusal as error:
            known = {shape.name: shape for shape in operation.error_shapes}
            assert error.code in known, f"{operation.name} never answers {error.code}"
            status = known[error.code].metadata.get("error", {}).get("httpStatusCode", 400)
            return status, {"x-amzn-ErrorType": error.code}, orjson.dumps({"message": error.message})
        return 200, {}, orjson.dumps(_written(said, operation.output_shape))

    def _find(self, method: str, path: str) -> tuple[OperationModel, Mapping[str, str]] | None:
        for verb, pattern, operation in self._routes:
            if verb == method and (match := pattern.fullmatch(path)):
                return operation, {name: unquote(value) for name, value in match.groupdict().items()}
        return None


class Json:
    """A service whose requests name their operation in a header; else as above."""

    def __init__(self, service: str, target: object) -> None:
        self._model = ServiceModel(Loader().load_service_model(service, "service-2"), service)
        self._target = target

    def answer(self, operation: str, body: bytes) -> tuple[int, bytes]:
        """A status, and what it says."""
        model = self._model.operation_model(operation)
        asked = orjson.loads(body)
        problems = ParamValidator().validate(asked, model.input_shape)
        assert not problems.has_errors(), problems.generate_report()
        try:
            said = getattr(self._target, xform_name(operation))(
                **{xform_name(name): one for name, one in asked.items()}
            )
        except Refusal as error:
            assert error.code in {shape.name for shape in model.error_shapes}, f"{operation} never answers {error.code}"
            return 400, orjson.dumps({"__type": error.code, "message": error.message})
        return 200, orjson.dumps(_written(said, model.output_shape))


def ec2_xml(operation: str, items: str, values: Iterable[Mapping[str, Any]]) -> bytes:
    """An answer of EC2 that is a list, as its model names the parts."""
    model = ServiceModel(Loader().load_service_model("ec2", "service-2"), "ec2").operation_model(operation)
    assert model.output_shape is not None
    listed = model.output_shape.members[items]
    names = {name: shape.serialization["name"] for name, shape in listed.member.members.items()}
    parts = ("".join(f"<{names[name]}>{value}</{names[name]}>" for name, value in one.items()) for one in values)
    inside = "".join(f"<item>{part}</item>" for part in parts)
    where = listed.serialization["name"]
    return f"<{operation}Response><{where}>{inside}</{where}></{operation}Response>".encode()


def _pattern(uri: str) -> str:
    return re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(uri.partition("?")[0]))


def _read(operation: OperationModel, parts: Mapping[str, str], query: str, body: bytes) -> dict[str, Any]:
    said: Mapping[str, Any] = orjson.loads(body) if body else {}
    asked, read = parse_qs(query), {}
    for name, shape in (operation.input_shape.members if operation.input_shape else {}).items():
        where, called = shape.serialization.get("location"), shape.serialization.get("name", name)
        if where == "uri":
            read[name] = parts[called]
        elif where == "querystring":
            if called in asked:
                value = asked[called]
                one = value[0]
                read[name] = (
                    value
                    if shape.type_name == "list"
                    else int(one)
                    if shape.type_name == "integer"
                    else one == "true"
                    if shape.type_name == "boolean"
                    else one
                )
        elif called in said:
            read[name] = said[called]
    unknown = said.keys() - {
        shape.serialization.get("name", name)
        for name, shape in (operation.input_shape.members if operation.input_shape else {}).items()
    }
    assert not unknown, f"{operation.name} knows no {unknown}"
    return read


def _written(value: Any, shape: Shape | None) -> Any:
    """As the shape says; fails on what it does not know."""
    if shape is None:
        return {}
    match shape.type_name:
        case "structure":
            unknown = value.keys() - shape.members.keys()
            assert not unknown, f"{shape.name} has no {unknown}"
            return {
                shape.members[name].serialization.get("name", name): _written(part, shape.members[name])
                for name, part in value.items()
                if part is not None
            }
        case "list":
            return [_written(part, shape.member) for part in value]
        case "map":
            return {name: _written(part, shape.value) for name, part in value.items()}
        case "timestamp":
            assert isinstance(value, datetime)
            return value.timestamp()
        case "string" if shape.enum:
            assert value in shape.enum, f"{shape.name} is never {value}"
            return value
        case _:
            return value
