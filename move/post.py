"""What the moves leave to mend by hand: run after move.py, in the root of the worktree."""
import re
from pathlib import Path
P = Path("modelplane_operator")

def edit(path, *pairs):
    p = Path(path); text = p.read_text()
    for a, b in pairs:
        if a not in text: print(f"!! {path}: lacks {a[:70]!r}"); continue
        text = text.replace(a, b)
    p.write_text(text)

# Types of ours beside the table of the others.
edit(P/"kube/resources.py", ("        *map(of, KINDS),\n", ""),
     ('"""Which types of objects we read and write, and where an API server keeps them.\n\nOur own types come from the models; the others are rows here, so that a plan can name one without asking a server.\n"""',
      '"""The types of objects that others define, and where an API server keeps objects of a type.\n\nOne that is named in a manifest of ours has a row here, so that a plan can name it without asking a server.\n"""'))
edit(P/"api/types.py", ("        return TYPES[api_version, kind]\n", "        return ALL[api_version, kind]\n"),
     ("has no row in clients/resources.py", "has no row in kube/resources.py"),
     ("\n\ndef type_of(", "\n\nALL: Final[Mapping[tuple[str, str], ResourceType]] = {\n    **TYPES,\n    **{(known.api_version, known.kind): known for known in map(of, KINDS)},\n}\n\n\ndef type_of("),
     ("A manifest of a type that has no row in `resources.py`.", "A manifest of a type that is neither ours nor has a row in `kube/resources.py`."))

# The tree of errors tells of the classes.
errors = (P/"clients/errors.py").read_text()
end = errors.index('"""', 3) + 3
tree = errors[:end]
(P/"clients/errors.py").write_text('"""What servers answer and networks do, as our errors: sorted once, here."""' + errors[end:].replace("\n\n# ruff: noqa: N818 - a finding is named for what was found", ""))
k = P/"kube/errors.py"; k.write_text(k.read_text().replace('"""@errors"""', tree + "\n\n# ruff: noqa: N818 - a finding is named for what was found", 1))

# Marks of ours on objects: what is applied, and by whom.
own = P/"kube/ownership.py"
text = own.read_text()
text = text.replace("from modelplane_operator.api import labels\n", "")
text = text.replace("labels.APPLIED", "APPLIED").replace("labels.FIELD_MANAGER", "FIELD_MANAGER")
text = text.replace("HASH: Final = 16", 'FIELD_MANAGER: Final = "modelplane"\nAPPLIED: Final = "modelplane.ai/applied"  # annotation: the hash of the manifest that was applied last\nHASH: Final = 16', 1)
own.write_text(text)
edit(P/"api/labels.py", ('APPLIED = f"{PREFIX}applied"  # annotation: the hash of the manifest that was applied last\n', ""), ('FIELD_MANAGER = "modelplane"\n', ""))
for folder in ("modelplane_operator", "tests", "scripts", "benchmarks"):
    for p in Path(folder).rglob("*.py"):
        t = p.read_text(); new = t
        for name in ("APPLIED", "FIELD_MANAGER"):
            if f"labels.{name}" in new:
                new = re.sub(rf"\blabels\.{name}\b", name, new)
                line = f"from modelplane_operator.kube.ownership import {name}\n"
                new = re.sub(r"(?m)^(from modelplane_operator\.)", line + r"\1", new, count=1)
        if new != t: p.write_text(new)

t = Path("pyproject.toml").read_text()
a = t.index('[[tool.importlinter.contracts]]\nname = "Imports point inward"'); b = t.index('[[tool.importlinter.contracts]]\nname = "The local fleet')
Path("pyproject.toml").write_text(t[:a] + '''[[tool.importlinter.contracts]]
name = "Imports point inward"
type = "layers"
containers = ["modelplane_operator"]
exhaustive = true
layers = [
  "__main__",
  "controllers",
  "runtime",
  "settings | logs",
  "planning | clients",
  "scheduling | rendering",
  "selectors",
  "api",
  "kube",
]

[[tool.importlinter.contracts]]
name = "What decides does no I/O"
type = "forbidden"
source_modules = [
  "modelplane_operator.api",
  "modelplane_operator.kube",
  "modelplane_operator.planning",
  "modelplane_operator.rendering",
  "modelplane_operator.scheduling",
  "modelplane_operator.selectors",
]
forbidden_modules = [
  "aiohttp", "asyncio", "kopf", "logging", "os", "pyhelm3", "random", "socket", "ssl", "structlog", "subprocess", "time",
]

''' + t[b:])

# One step adds a finalizer, and one removes it; of the object itself where none is named.
import subprocess
for p in Path("tests").rglob("*.py"):
    t = p.read_text(); n = t.replace("from modelplane_operator.api.labels import APPLIED, FIELD_MANAGER", "from modelplane_operator.kube.ownership import APPLIED, FIELD_MANAGER")
    for a, b in (("collection", "informer"), ("watching", "reflector"), ("secrets", "referenced")):
        n = n.replace(f"from tests.clients.test_{a} import", f"from tests.clients.test_{b} import")
    if n != t: p.write_text(n)
