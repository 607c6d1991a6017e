"""Selectors by chance: well-typed ones, and such with a mistake somewhere, the same for the same seed.

Each production picks among ways to write an expression of one type; now and then it picks another type, which is how
most of the ill-typed ones come about.
"""

import random
from collections.abc import Callable

DOMAINS = ["gpu.example.com", "resource.kubernetes.io", "nowhere.example.com"]
ATTRIBUTES = ["model", "cores", "ecc", "version", "odd", "absent"]
CAPACITIES = ["memory", "slots", "tiny", "absent"]


class Generator:
    """A stream of expressions; `wrong` is the chance of a type that does not fit, at each step."""

    def __init__(self, seed: int, *, wrong: float = 0.02) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._wrong = wrong
        self._variables: list[tuple[str, str]] = []

    def selector(self) -> str:
        self._variables = []
        return self._make("bool", self._random.randint(1, 4))

    def _pick(self, *choices: Callable[[], str]) -> str:
        return self._random.choice(choices)()

    def _make(self, type_: str, depth: int) -> str:
        if self._random.random() < self._wrong:
            type_ = self._random.choice(list(self._leaves))
        known = [name for name, t in self._variables if t == type_]
        if known and self._random.random() < 0.5:  # noqa: PLR2004
            return self._random.choice(known)
        ways = self._leaves[type_] if depth <= 0 else self._leaves[type_] + self._branches[type_] * 3
        return self._random.choice(ways)(self, depth - 1)

    def _one(self, *texts: str) -> str:
        return self._random.choice(texts)

    def _path(self, what: str, ids: list[str]) -> str:
        domain, name = self._one(*DOMAINS), self._one(*ids)
        return self._one(
            f'device.{what}["{domain}"].{name}', f'device.{what}["{domain}"].{name}',
            f'device.{what}["{domain}"]["{name}"]', f"device.{what}.gpu.{name}",
        )  # fmt: skip

    def _over(self, depth: int, element: str, body: Callable[[], str], macro: str, container: str | None = None) -> str:
        container = container or self._make(f"list {element}", depth)
        name = self._one("x", "y", "z")
        self._variables.append((name, element))
        text = f"{container}.{macro}({name}, {body()})"
        self._variables.pop()
        return text

    def _over_map(self, depth: int, body: Callable[[], str], macro: str) -> str:
        self._variables += [("k", "string"), ("v", "any")]
        domain = self._one(*DOMAINS)
        text = f'device.attributes["{domain}"].{macro}(k, v, {body()})'
        del self._variables[-2:]
        return text

    def _bound(self, depth: int, type_: str) -> str:
        inner = self._one("string", "int", "bool", "Quantity", "Semver", "any")
        value = self._make(inner, depth)
        self._variables.append(("b", inner))
        text = f"cel.bind(b, {value}, {self._make(type_, depth)})"
        self._variables.pop()
        return text

    def _operator(self, depth: int, type_: str, *signs: str) -> str:
        return f"{self._make(type_, depth)} {self._one(*signs)} {self._make(type_, depth)}"

    _leaves: dict[str, list[Callable[["Generator", int], str]]] = {
        "bool": [
            lambda g, d: g._one("true", "false"),
            lambda g, d: "device.allowMultipleAllocations",
            lambda g, d: f'"{g._one(*DOMAINS)}" in device.{g._one("attributes", "capacity")}',
            lambda g, d: f'has({g._path("attributes", ATTRIBUTES)})',
            lambda g, d: f'device.driver == "{g._one(*DOMAINS)}"',
            lambda g, d: g._path("attributes", ["ecc", "ecc", "model", "absent"]),
            lambda g, d: f'isQuantity("{g._one("1Gi", "x", "1.5", "10Mo", "1e3", ".5", "5.", "")}")',
            lambda g, d: f'isSemver("{g._one("1.2.3", "v1", "1.0", "1.2.3-a.1", "01.1.1")}"{g._one("", ", true")})',
        ],
        "int": [
            lambda g, d: g._one("0", "1", "2", "-1", "7", "16", "9223372036854775807", "0x10"),
            lambda g, d: g._path("attributes", ["cores"]),
        ],
        "uint": [lambda g, d: g._one("0u", "1u", "18446744073709551615u")],
        "double": [lambda g, d: g._one("0.5", "1.0", "-2.5", "1e3", "16.0", "1234567.0", "0.00001")],
        "string": [
            lambda g, d: g._one('"a"', "'b c'", '"H100"', '""', "r'\\d+'", '"a,b,c"', '"\\u00e9x"', '"Hello World"', '"12"'),
            lambda g, d: "device.driver",
            lambda g, d: g._path("attributes", ["model"]),
        ],
        "bytes": [lambda g, d: g._one("b'a'", "b'\\xff'", 'b""')],
        "Quantity": [
            lambda g, d: f'quantity("{g._one("1", "80Gi", "141Gi", "1.5k", "-3", "0", "100m", "16", "1.0", "8Ei", "9x")}")',
            lambda g, d: g._path("capacity", CAPACITIES),
            lambda g, d: g._path("capacity", ["memory"]),
        ],
        "Semver": [
            lambda g, d: f'semver("{g._one("1.2.3", "9.5.3", "10.0.0", "9.5.3-rc.1", "2.0.0-a.b", "1.0")}")',
            lambda g, d: f'semver("{g._one("v1", "01.02.03", "9.5", "x")}", true)',
            lambda g, d: g._path("attributes", ["version"]),
        ],
        "any": [lambda g, d: g._path("attributes", ATTRIBUTES), lambda g, d: f"dyn({g._make('int', 0)})"],
        "list int": [lambda g, d: g._one("[1, 2, 3]", "[]", "[3, 1, 2, 2]", "[16]", "lists.range(4)")],
        "list string": [
            lambda g, d: g._one('["a", "b"]', '["H100", "H200"]', '["b", "a", "a"]', '["gpu.example.com"]'),
            lambda g, d: f'[{g._path("attributes", ["model"])}]',
        ],
        "map": [lambda g, d: g._one('{"a": 1, "b": 2}', "{}", '{"H100": 3}')],
        "optional int": [lambda g, d: g._one("optional.of(1)", "optional.none()", "[1, 2][?1]", '{"a": 1}.?a')],
        "optional any": [lambda g, d: f'device.attributes["{g._one(*DOMAINS)}"].?{g._one(*ATTRIBUTES)}'],
    }

    _branches: dict[str, list[Callable[["Generator", int], str]]] = {
        "bool": [
            lambda g, d: f'{g._make("bool", d)} && {g._make("bool", d)}',
            lambda g, d: f'{g._make("bool", d)} || {g._make("bool", d)}',
            lambda g, d: f'({g._make("bool", d)} || {g._make("bool", d)}) && {g._make("bool", d)}',
            lambda g, d: f'!({g._make("bool", d)})',
            lambda g, d: f'({g._make("bool", d)} ? {g._make("bool", d)} : {g._make("bool", d)})',
            lambda g, d: g._operator(d, g._one("int", "string", "double", "uint", "bool", "bytes"),
                                     "==", "!=", "<", "<=", ">", ">="),
            lambda g, d: f'{g._make("int", d)} {g._one("<", ">=")} {g._make(g._one("double", "uint"), d)}',
            lambda g, d: g._operator(d, g._one("Quantity", "Semver", "list int", "list string", "map"), "==", "!="),
            lambda g, d: f'{g._make("any", d)} {g._one("==", "!=")} {g._make(g._one("int", "string", "bool", "Semver", "double", "Quantity"), d)}',
            lambda g, d: f'{g._make("any", d)} {g._one("<", ">=")} {g._make(g._one("int", "string", "double"), d)}',
            *[lambda g, d: (lambda t: f'{g._make(t, d)}.{g._one("isGreaterThan", "isLessThan")}({g._make(t, d)})')(
                g._one("Quantity", "Semver"))] * 3,
            lambda g, d: f'{g._make("Quantity", d)}.compareTo({g._make("Quantity", d)}) {g._one(">=", "==", "<")} 0',
            lambda g, d: f'{g._make("any", d)}.compareTo({g._make("Semver", d)}) {g._one(">=", "==", "<")} 0',
            lambda g, d: f'{g._make("Quantity", d)}.isInteger()',
            lambda g, d: f'{g._make("string", d)}.{g._one("contains", "startsWith", "endsWith")}({g._make("string", d)})',
            lambda g, d: f'{g._make("string", d)}.matches("{g._one("^H", "[0-9]+$", ".", "(a|b)*c?", "(?i)h100", "(", "a{2,3}")}")',
            lambda g, d: f'{g._make("int", d)} in {g._make("list int", d)}',
            lambda g, d: f'{g._make("string", d)} in {g._make(g._one("list string", "map"), d)}',
            lambda g, d: g._over(d, "int", lambda: g._make("bool", d), g._one("all", "exists", "exists_one")),
            lambda g, d: g._over(d, "string", lambda: g._make("bool", d), g._one("all", "exists", "existsOne")),
            lambda g, d: g._over(d, "string", lambda: g._make("bool", d), g._one("all", "exists"),
                                 g._one("device.attributes", 'device.attributes["gpu.example.com"]', "device.capacity")),
            lambda g, d: g._over_map(d, lambda: g._make("bool", d), g._one("all", "exists", "exists_one")),
            lambda g, d: f'{g._make(g._one("list int", "list string"), d)}.isSorted()',
            lambda g, d: f'sets.{g._one("contains", "intersects", "equivalent")}({g._make("list int", d)}, {g._make("list int", d)})',
            lambda g, d: f'{g._make(g._one("optional int", "optional any"), d)}.hasValue()',
            lambda g, d: f'{g._make("optional any", d)}.orValue({g._make(g._one("bool", "string"), d)}) == {g._make(g._one("bool", "string"), d)}',
            lambda g, d: g._bound(d, "bool"),
            lambda g, d: f'bool({g._one(chr(34) + "true" + chr(34), g._make("bool", d), g._make("string", d))})',
        ],
        "int": [
            lambda g, d: g._operator(d, "int", "+", "-", "*", "/", "%"),
            lambda g, d: f'({g._operator(d, "int", "+", "-", "*")})',
            lambda g, d: f'-({g._make("int", d)})',
            lambda g, d: f'size({g._make(g._one("string", "list int", "list string", "map", "bytes"), d)})',
            lambda g, d: f'{g._make(g._one("string", "list string", "map"), d)}.size()',
            lambda g, d: f'{g._make("Quantity", d)}.asInteger()',
            lambda g, d: f'{g._make("Quantity", d)}.compareTo({g._make("Quantity", d)})',
            lambda g, d: f'sign({g._make("Quantity", d)})',
            lambda g, d: f'{g._make("Semver", d)}.{g._one("major", "minor", "patch")}()',
            lambda g, d: f'{g._make("Semver", d)}.compareTo({g._make("Semver", d)})',
            lambda g, d: f'int({g._make(g._one("double", "uint", "string", "int"), d)})',
            lambda g, d: f'{g._make("string", d)}.{g._one("indexOf", "lastIndexOf")}({g._make("string", d)})',
            lambda g, d: f'{g._make("string", d)}.{g._one("indexOf", "lastIndexOf")}({g._make("string", d)}, {g._make("int", 0)})',
            lambda g, d: f'{g._make("list int", d)}[{g._make("int", 0)}]',
            lambda g, d: f'{g._make("list int", d)}.{g._one("sum", "min", "max")}()',
            lambda g, d: f'{g._make("list int", d)}.{g._one("indexOf", "lastIndexOf")}({g._make("int", d)})',
            lambda g, d: f'{g._make("map", d)}[{g._make("string", d)}]',
            lambda g, d: f'{g._make("map", d)}.{g._one("a", "b", "H100")}',
            lambda g, d: f'{g._make("optional int", d)}.{g._one("orValue(5)", "value()")}',
            lambda g, d: g._bound(d, "int"),
        ],
        "uint": [
            lambda g, d: g._operator(d, "uint", "+", "-", "*", "/", "%"),
            lambda g, d: f'uint({g._make(g._one("double", "int", "string"), d)})',
        ],
        "double": [
            lambda g, d: g._operator(d, "double", "+", "-", "*", "/"),
            lambda g, d: f'double({g._make(g._one("int", "uint", "string"), d)})',
            lambda g, d: f'{g._make("Quantity", d)}.asApproximateFloat()',
        ],
        "string": [
            lambda g, d: f'{g._make("string", d)} + {g._make("string", d)}',
            lambda g, d: f'string({g._make(g._one("int", "double", "bool", "bytes", "uint"), d)})',
            lambda g, d: f'{g._make("string", d)}.{g._one("lowerAscii", "upperAscii", "trim")}()',
            lambda g, d: f'{g._make("string", d)}.replace({g._make("string", d)}, {g._make("string", d)}{g._one("", ", 1", ", 0")})',
            lambda g, d: f'{g._make("string", d)}.substring({g._make("int", 0)}{g._one("", ", 2")})',
            lambda g, d: f'{g._make("string", d)}.charAt({g._make("int", 0)})',
            lambda g, d: f'{g._make("string", d)}.find("{g._one("[0-9]+", "H", "x*")}")',
            lambda g, d: f'{g._make("list string", d)}.join({g._one("", chr(34) + "-" + chr(34))})',
            lambda g, d: f'{g._make("list string", d)}[{g._make("int", 0)}]',
            lambda g, d: f'strings.quote({g._make("string", d)})',
            lambda g, d: f'({g._make("bool", d)} ? {g._make("string", d)} : {g._make("string", d)})',
            lambda g, d: g._bound(d, "string"),
        ],
        "bytes": [lambda g, d: f'bytes({g._make("string", d)})', lambda g, d: g._operator(d, "bytes", "+")],
        "Quantity": [
            lambda g, d: f'{g._make("Quantity", d)}.{g._one("add", "sub")}({g._make(g._one("Quantity", "int"), d)})',
        ],
        "Semver": [lambda g, d: f'semver({g._make("string", d)})'],
        "any": [lambda g, d: f'({g._make("bool", d)} ? {g._make("any", d)} : {g._make(g._one("any", "int", "string"), d)})'],
        "list int": [
            lambda g, d: f'{g._make("list int", d)} + {g._make("list int", d)}',
            lambda g, d: f'[{g._make("int", d)}, {g._make("int", d)}]',
            lambda g, d: g._over(d, "int", lambda: g._make("int", d), "map"),
            lambda g, d: g._over(d, "int", lambda: g._make("bool", d), "filter"),
            lambda g, d: g._over(d, "string", lambda: g._make("int", d), "map"),
            lambda g, d: f'{g._make("list int", d)}.{g._one("sort", "reverse", "distinct")}()',
            lambda g, d: f'{g._make("list int", d)}.slice({g._make("int", 0)}, {g._make("int", 0)})',
            lambda g, d: g._over(d, "int", lambda: g._make("int", d), "sortBy"),
            lambda g, d: f'[[1], {g._make("list int", d)}].flatten()',
            lambda g, d: f'[{g._make("int", d)}, ?{g._make("optional int", d)}]',
        ],
        "list string": [
            lambda g, d: f'{g._make("string", d)}.split({g._one(chr(34) + "," + chr(34), chr(34) * 2)}{g._one("", ", 2", ", 0")})',
            lambda g, d: f'[{g._make("string", d)}, {g._make("string", d)}]',
            lambda g, d: g._over(d, "string", lambda: g._make("string", d), "map"),
            lambda g, d: g._over(d, "string", lambda: g._make("bool", d), "filter"),
            lambda g, d: f'{g._make("list string", d)}.{g._one("sort", "reverse", "distinct")}()',
            lambda g, d: f'{g._make("string", d)}.findAll("{g._one("[a-z]", "[0-9]*", "l+")}"{g._one("", ", 1")})',
        ],
        "map": [
            lambda g, d: f'{{{g._make("string", d)}: {g._make("int", d)}}}',
            lambda g, d: f'{g._make("map", d)}.transformMap(k, v, v + 1)',
        ],
        "optional int": [
            lambda g, d: f'optional.of({g._make("int", d)})',
            lambda g, d: f'{g._make("optional int", d)}.or({g._make("optional int", d)})',
            lambda g, d: f'{g._make("list int", d)}[?{g._make("int", 0)}]',
            lambda g, d: f'{g._make("list int", d)}.{g._one("first", "last")}()',
            lambda g, d: g._over(d, "int", lambda: g._make("int", d), "optMap", g._make("optional int", d)),
        ],
        "optional any": [lambda g, d: f'{g._make("optional any", d)}.or({g._make("optional any", d)})'],
    }  # fmt: skip
