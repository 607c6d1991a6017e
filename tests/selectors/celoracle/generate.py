"""Selectors by chance: well-typed ones, and such with a mistake somewhere, the same for the same seed.

The grammar is a table of templates per type. `<int>` is any expression of that type (`<int|uint>` of one of them),
`«a ~ b»` one of the texts, `<new int>` a variable that the rest of the template may use. Now and then another type is
taken than the one asked for, which is how the ill-typed ones come about.
"""

import random
import re

DOMAIN = "«gpu.example.com ~ gpu.example.com ~ resource.kubernetes.io ~ nowhere.example.com»"
ATTRIBUTE = "«model ~ cores ~ ecc ~ version ~ odd ~ absent»"
CAPACITY = "«memory ~ memory ~ slots ~ tiny ~ absent»"


def _read(what: str, name: str) -> list[str]:
    return [f'device.{what}["{DOMAIN}"].{name}', f'device.{what}["{DOMAIN}"]["{name}"]', f"device.{what}.gpu.{name}"]


LEAVES: dict[str, list[str]] = {
    "bool": [
        "«true ~ false»",
        "device.allowMultipleAllocations",
        f'"{DOMAIN}" in device.«attributes ~ capacity»',
        f'has(device.attributes["{DOMAIN}"].{ATTRIBUTE})',
        "has(device.«attributes ~ capacity».gpu.«cores ~ memory»)",
        f'device.driver == "{DOMAIN}"',
        *_read("attributes", "ecc"),
        'isQuantity("«1Gi ~ x ~ 1.5 ~ 10Mo ~ 1e3 ~ .5 ~ 5. ~ 1,3G»")',
        'isSemver("«1.2.3 ~ v1 ~ 1.0 ~ 1.2.3-a.1 ~ 01.1.1»"« ~ , true»)',
    ],
    "int": ["«0 ~ 1 ~ 2 ~ -1 ~ 7 ~ 16 ~ 9223372036854775807 ~ 0x10»", *_read("attributes", "cores")],
    "uint": ["«0u ~ 1u ~ 18446744073709551615u»"],
    "double": ["«0.5 ~ 1.0 ~ -2.5 ~ 1e3 ~ 16.0 ~ 1234567.0 ~ 0.00001»"],
    "string": [
        "«'a' ~ 'b c' ~ \"H100\" ~ \"\" ~ r'\\d+' ~ 'a,b,c' ~ '\\u00e9x' ~ 'Hello World' ~ \"12\"»",
        "device.driver",
        *_read("attributes", "model"),
    ],
    "bytes": ["«b'a' ~ b'\\xff' ~ b''»"],
    "Quantity": [
        'quantity("«1 ~ 80Gi ~ 141Gi ~ 1.5k ~ -3 ~ 0 ~ 100m ~ 16 ~ 1.0 ~ 8Ei ~ 9x»")',
        *_read("capacity", CAPACITY),
    ],
    "Semver": [
        'semver("«1.2.3 ~ 9.5.3 ~ 10.0.0 ~ 9.5.3-rc.1 ~ 2.0.0-a.b ~ 1.0»")',
        'semver("«v1 ~ 01.02.03 ~ 9.5 ~ x»", true)',
        *_read("attributes", "version"),
    ],
    "any": [*_read("attributes", ATTRIBUTE), "dyn(<int>)"],
    "ints": ["«[1, 2, 3] ~ [] ~ [3, 1, 2, 2] ~ [16] ~ lists.range(4)»"],
    "strings": ["«['a', 'b'] ~ ['H100', 'H200'] ~ ['b', 'a', 'a']»", '[device.attributes["gpu.example.com"].model]'],
    "map": ["«{'a': 1, 'b': 2} ~ {} ~ {'H100': 3}»"],
    "optional int": ["«optional.of(1) ~ optional.none() ~ [1, 2][?1] ~ {'a': 1}.?a»"],
    "optional any": [f'device.attributes["{DOMAIN}"].?{ATTRIBUTE}'],
}

BRANCHES: dict[str, list[str]] = {
    "bool": [
        *["<bool> && <bool>", "<bool> || <bool>", "(<bool> || <bool>) && <bool>", "!(<bool>)"] * 2,
        "(<bool> ? <bool> : <bool>)",
        *[f"<{t}> «== ~ != ~ < ~ <= ~ > ~ >=» <{t}>" for t in ("int", "string", "double", "uint", "bool", "bytes")],
        "<int> «< ~ >=» <double|uint>",
        *[f"<{t}> «== ~ !=» <{t}>" for t in ("Quantity", "Semver", "ints", "strings", "map")],
        "<any> «== ~ !=» <int|string|bool|Semver|double|Quantity>",
        "<any> «< ~ >=» <int|string|double>",
        *[f"<{t}>.«isGreaterThan ~ isLessThan»(<{t}>)" for t in ("Quantity", "Semver")] * 3,
        *["<Quantity>.compareTo(<Quantity>) «>= ~ == ~ <» 0", "<any>.compareTo(<Semver>) «>= ~ == ~ <» 0"] * 2,
        "<Quantity>.isInteger()",
        "<string>.«contains ~ startsWith ~ endsWith»(<string>)",
        '<string>.matches("«^H ~ [0-9]+$ ~ . ~ (a|b)*c? ~ (?i)h100 ~ ( ~ a{2,3})"»',
        "<int> in <ints>",
        "<string> in <strings|map>",
        "<ints>.«all ~ exists ~ exists_one»(<new int>, <bool>)",
        "<strings>.«all ~ exists ~ exists_one»(<new string>, <bool>)",
        "<ints>.«all ~ exists ~ existsOne»(<new int>, <new int>, <bool>)",
        "device.«attributes ~ capacity».«all ~ exists»(<new string>, <bool>)",
        f'device.attributes["{DOMAIN}"].«all ~ exists ~ exists_one»(<new string>, <bool>)',
        f'device.attributes["{DOMAIN}"].«all ~ exists ~ exists_one»(<new string>, <new any>, <bool>)',
        f'device.capacity["{DOMAIN}"].«all ~ exists»(<new string>, <new Quantity>, <bool>)',
        "<ints|strings>.isSorted()",
        "sets.«contains ~ intersects ~ equivalent»(<ints>, <ints>)",
        "<optional int|optional any>.hasValue()",
        "<optional any>.orValue(<bool|string>) == <bool|string>",
        f'cel.bind(<new any>, device.attributes["{DOMAIN}"].{ATTRIBUTE}, <bool>)',
        f'cel.bind(<new Quantity>, device.capacity["{DOMAIN}"].{CAPACITY}, <bool>)',
        "cel.bind(<new int>, «16 ~ 1 / 0», <bool>)",
        "bool(<string|bool>)",
    ],
    "int": [
        "<int> «+ ~ - ~ * ~ / ~ %» <int>",
        "(<int> «+ ~ - ~ *» <int>)",
        "-(<int>)",
        "size(<string|ints|strings|map|bytes>)",
        "<string|strings|map>.size()",
        "<Quantity>.asInteger()",
        "sign(<Quantity>)",
        "<Quantity>.compareTo(<Quantity>)",
        "<Semver>.«major ~ minor ~ patch»()",
        "<Semver>.compareTo(<Semver>)",
        "int(<double|uint|string|int>)",
        "<string>.«indexOf ~ lastIndexOf»(<string>« ~ , 1 ~ , -1»)",
        "<ints>[<int>]",
        "<ints>.«sum ~ min ~ max»()",
        "<ints>.«indexOf ~ lastIndexOf»(<int>)",
        "<map>[<string>]",
        "<map>.«a ~ b ~ H100»",
        "<optional int>.«orValue(5) ~ value()»",
    ],
    "uint": ["<uint> «+ ~ - ~ * ~ / ~ %» <uint>", "uint(<double|int|string>)"],
    "double": ["<double> «+ ~ - ~ * ~ /» <double>", "double(<int|uint|string>)", "<Quantity>.asApproximateFloat()"],
    "string": [
        "<string> + <string>",
        "string(<int|double|bool|bytes|uint>)",
        "<string>.«lowerAscii ~ upperAscii ~ trim»()",
        "<string>.replace(<string>, <string>« ~ , 1 ~ , 0»)",
        "<string>.substring(<int>« ~ , 2»)",
        "<string>.charAt(<int>)",
        '<string>.find("«[0-9]+ ~ H ~ x*»")',
        "<strings>.join(« ~ '-'»)",
        "<strings>[<int>]",
        "strings.quote(<string>)",
        "(<bool> ? <string> : <string>)",
    ],
    "bytes": ["bytes(<string>)", "<bytes> + <bytes>"],
    "Quantity": ["<Quantity>.«add ~ sub»(<Quantity|int>)"],
    "Semver": ["semver(<string>)"],
    "any": ["(<bool> ? <any> : <any|int|string>)"],
    "ints": [
        "<ints> + <ints>",
        "[<int>, <int>]",
        "[<int>, ?<optional int>]",
        "<ints>.map(<new int>, <int>)",
        "<ints>.map(<new int>, <bool>, <int>)",
        "<ints>.filter(<new int>, <bool>)",
        "<strings>.map(<new string>, <int>)",
        "<ints>.transformList(<new int>, <new int>, <int>)",
        "<ints>.«sort ~ reverse ~ distinct»()",
        "<ints>.sortBy(<new int>, <int|string>)",
        "<ints>.slice(<int>, <int>)",
        "[[1], <ints>].flatten()",
    ],
    "strings": [
        '<string>.split(«"," ~ ""»« ~ , 2 ~ , 0»)',
        "[<string>, <string>]",
        "<strings>.map(<new string>, <string>)",
        "<strings>.filter(<new string>, <bool>)",
        "<strings>.«sort ~ reverse ~ distinct»()",
        '<string>.findAll("«[a-z] ~ [0-9]* ~ l+»"« ~ , 1»)',
    ],
    "map": ["{<string>: <int>}", "<map>.transformMap(<new string>, <new int>, <int>)"],
    "optional int": [
        "optional.of(<int>)",
        "<optional int>.or(<optional int>)",
        "<ints>[?<int>]",
        "<ints>.«first ~ last»()",
        "<optional int>.optMap(<new int>, <int>)",
    ],
    "optional any": ["<optional any>.or(<optional any>)"],
}


class Generator:
    """A stream of selectors; `wrong` is the chance of a type that does not fit, at each step."""

    def __init__(self, seed: int, *, wrong: float = 0.02) -> None:
        self._random = random.Random(seed)  # noqa: S311  (nothing secret)
        self._wrong = wrong
        self._variables: list[tuple[str, str]] = []

    def selector(self, *, limit: int = 600) -> str:
        """The next one, of at most so many characters."""
        while len(text := self._make("bool", self._random.randint(1, 4))) > limit:
            pass
        return text

    def _make(self, type_: str, depth: int) -> str:
        if self._random.random() < self._wrong:
            type_ = self._random.choice(list(LEAVES))
        known = [name for name, t in self._variables if t == type_]
        if known and self._random.random() < 0.5:
            return self._random.choice(known)
        templates = LEAVES[type_] if depth <= 0 else LEAVES[type_] + BRANCHES[type_] * 3
        return self._filled(self._random.choice(templates), depth - 1)

    def _filled(self, template: str, depth: int) -> str:
        seen = len(self._variables)
        text = re.sub(r"«([^»]*)»", lambda m: self._random.choice(m[1].split(" ~ ")).strip(), template)
        text = re.sub(r"<(new )?([A-Za-z][\w |]*)>", lambda m: self._place(m, depth), text)
        del self._variables[seen:]
        return text

    def _place(self, match: re.Match[str], depth: int) -> str:
        if not match[1]:
            return self._make(self._random.choice(match[2].split("|")), depth)
        name = self._random.choice([n for n in ("x", "y", "z", "w") if n not in dict(self._variables[-1:])])
        self._variables.append((name, match[2]))
        return name
