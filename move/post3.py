from pathlib import Path
P = Path("modelplane_operator")
def edit(path, *pairs):
    p = Path(path); text = p.read_text()
    for a, b in pairs:
        if a not in text: print(f"!! {path}: lacks {a[:90]!r}"); continue
        text = text.replace(a, b)
    p.write_text(text)
edit(P/"controllers/model_replica.py", ('"""`referenced objects` are what engines name on the hub; `gateways` tell whether a cluster that is silent still serves."""',
 '"""`referenced`: what engines name on the hub; `gateways` tell whether a cluster that is silent still serves."""'))
q = P/"runtime/queue.py"; t = q.read_text()
a = t.index("A key is in the queue once"); b = t.index("What becomes of a key after its run:")
q.write_text(t[:a] + """A key is in the queue once, however often it is added, and runs once at a time. Those that are due take turns: namespace
by namespace, and within one by concurrency key. So a namespace with a thousand keys does not hold up one with a single
key, and a cluster that hangs holds up only what concerns it. `limit` keys of one concurrency key run at once. Keys of
which there is news come before those that are only looked at again, after a start or in a resync.

""" + t[b:])
edit("docs/architecture.md",
 ("what to do next (`planning`), and everything that opens a socket (`clients`, `controllers`).",
  "what to do next (`planning`), what opens a socket or starts a process (`clients`), how a reconcile runs whatever the kind (`runtime`), and what each kind reads and watches (`controllers`)."),
 ("__main__  >  controllers  >  planning  >  scheduling | rendering | clients  >  api\n",
  "__main__  >  controllers  >  runtime  >  settings | logs  >  planning | clients  >  scheduling | rendering  >  selectors  >  api  >  kube\n"),
 ("`api`, `scheduling`, `rendering` and `planning` do no I/O:", "Packages beside each other do not know each other.\n`kube`, `api`, `selectors`, `scheduling`, `rendering` and `planning` do no I/O, and import nothing that does:"),
 ("no sockets, no clock, no randomness, no environment, no logging.", "no sockets, no clock, no randomness, no environment, no logging."),
 ("`make check` holds both rules with import contracts.", "`make check` holds these rules with import contracts."),
 ("| a model that reads and writes itself", "| values about any object: types, keys, conditions, errors, Helm's releases, backoff | `modelplane_operator/kube/` |\n| a model that reads and writes itself"),
 ("`modelplane_operator/selectors/`, `quantity.py`, `semver.py`", "`modelplane_operator/selectors/`"),
 ("`modelplane_operator/clients/kube.py`, `wire.py`, `errors.py`", "`modelplane_operator/clients/kube.py`, `wire.py`, `errors.py`, `modelplane_operator/kube/errors.py`"),
 ("`modelplane_operator/clients/store.py`, `collection.py`, `watching.py`", "`modelplane_operator/clients/store.py`, `informer.py`, `reflector.py`"))
import re
for p in [*Path("docs").glob("*.md"), Path("CONTRIBUTING.md"), *Path("tests").rglob("*.py")]:
    t = p.read_text(); n = t
    for a, b in (("clients/collection.py", "clients/informer.py"), ("clients/watching.py", "clients/reflector.py"), ("clients/resources.py", "kube/resources.py"), ("clients/ownership.py", "kube/ownership.py"),
                 ("tests/clients/test_collection.py", "tests/clients/test_informer.py"), ("tests/clients/test_watching.py", "tests/clients/test_reflector.py"), ("tests/clients/test_secrets.py", "tests/clients/test_referenced.py")):
        n = n.replace(a, b)
    if n != t: p.write_text(n)
