"""After rename.py: what two names that became one leave to mend."""
import re
from pathlib import Path
P = Path("modelplane_operator")
def edit(path, *pairs):
    p = Path(path); text = p.read_text()
    for a, b in pairs:
        if a not in text: print(f"!! {path}: lacks {a[:90]!r}"); continue
        text = text.replace(a, b)
    p.write_text(text)
edit(P/"planning/plan.py",
 ('''@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Take our finalizer off the object that the plan is for: nothing of it is left anywhere."""

    def __str__(self) -> str:
        return "release the object"


''', ""),
 ('''        return f"guard {_named(self.type, self.key, HUB)}"''', '''        return f"add our finalizer to {_named(self.type, self.key, HUB)}"'''),
 ('''    """Take our finalizer off it: we do not need it any more."""

    type: ResourceType
    key: Key

    def __str__(self) -> str:
        return f"unguard {_named(self.type, self.key, HUB)}"''',
  '''    """Take our finalizer off it: we do not need it any more.

    Without a type and a key, off the object that the plan is for: nothing of it is left anywhere.
    """

    type: ResourceType | None = None
    key: Key | None = None

    def __str__(self) -> str:
        whom = _named(self.type, self.key, HUB) if self.type and self.key else "the object"
        return f"remove our finalizer from {whom}"'''),
 ('''    | RemoveFinalizer
    | AddFinalizer
    | RemoveFinalizer
''', '''    | AddFinalizer
    | RemoveFinalizer
'''),
 ('"give up what was begun with', '"mark as failed what was begun with'))
edit(P/"runtime/steps.py",
 ('''            case RemoveFinalizer():
                await self._set_finalizer(self.subject, self.key, present=False)
            case AddFinalizer''', '''            case AddFinalizer'''),
 ('''            case RemoveFinalizer(kind, key):
                await self._set_finalizer(kind, key, present=False)''',
  '''            case RemoveFinalizer(kind, key):
                await self._set_finalizer(kind or self.subject, key or self.key, present=False)'''))
p = P/"runtime/steps.py"; t = p.read_text()
t = re.sub(r"    RemoveFinalizer,\n((?:    \w+,\n)*)    RemoveFinalizer,\n", r"    RemoveFinalizer,\n\1", t); p.write_text(t)

edit(P/"runtime/queue.py",
 ("by namespace, and within one lane by lane, so that", "by namespace, and within one those of each concurrency key in turn, so that"),
 ("`limit` keys of one lane run at once.", "`limit` keys of one concurrency key run at once."),
 ("The next key whose lane is not full; its namespace has had its turn then, and in it the lane.", "The next key whose concurrency key has room; that and its namespace have had their turn then."),
 ("Of each lane, the key that has waited longest.", "Of each concurrency key, the one that has waited longest."),
 ("by namespace and lane, each of the three", "by namespace and concurrency key, each of the three"),
 ("tells a key's namespace and lane,", "tells a key's namespace and concurrency key,"),
 ("# in its lane", "# until it may run"),
 ("Keys that wait for their lane have no time.", "Keys that wait for others of their concurrency key have no time."))
edit(P/"runtime/loop.py", ("too many of one lane do not run at once", "too many of one key do not run at once"))
