"""Move modules and top-level names between modules, and mend every import and path that says so.

    move.py TABLE.json      run in the root of a worktree

TABLE: [{"from": "a.b", "to": "a.c", "names": ["X", ...] | "*", "doc": "docstring of a new module"}]
A "*" is `git mv` of the whole module. Names take along the comments above and the docstring-like string below them.
Unused imports are left to `ruff --fix` afterwards.
"""
from __future__ import annotations
import ast, json, re, subprocess, sys
from pathlib import Path

ROOT = Path.cwd()
PKG = "modelplane_operator"
FOLDERS = ["modelplane_operator", "tests", "scripts", "benchmarks", "localfleet"]

def path_of(module: str) -> Path:
    p = ROOT / Path(*module.split("."))
    return p / "__init__.py" if p.is_dir() else p.with_suffix(".py")

def segments(text: str):
    """(header lines, [(names, segment text)]) of a module: header is docstring and imports."""
    tree = ast.parse(text); lines = text.splitlines(keepends=True)
    body = tree.body; header_end = 0; out = []
    i = 0
    while i < len(body):
        n = body[i]
        is_doc = i == 0 and isinstance(n, ast.Expr)
        if is_doc or isinstance(n, (ast.Import, ast.ImportFrom)) or (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)):
            if out: raise SystemExit("import after code")
            header_end = n.end_lineno; i += 1; continue
        start = header_end if not out else out[-1][2]
        end = n.end_lineno; i += 1
        while i < len(body) and isinstance(body[i], ast.Expr) and isinstance(body[i].value, ast.Constant) and isinstance(body[i].value.value, str):
            end = body[i].end_lineno; i += 1
        # trailing comment on the same line is included by whole lines
        out.append((names_of(n), start, end))
    return "".join(lines[:header_end]), [(names, "".join(lines[s:e])) for names, s, e in out]

def names_of(n):
    if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): return {n.name}
    if isinstance(n, ast.Assign): return {t.id for tt in n.targets for t in ast.walk(tt) if isinstance(t, ast.Name)}
    if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name): return {n.target.id}
    return set()

def used(text: str) -> set[str]:
    tree = ast.parse(text); found = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    for n in ast.walk(tree):  # names in strings of cast("X", ...) are left out on purpose
        pass
    return found

moved: dict[tuple[str, str], str] = {}      # (module, name) -> module
modules: dict[str, str] = {}                # whole modules

def header_without_doc(header: str) -> str:
    tree = ast.parse(header)
    if tree.body and isinstance(tree.body[0], ast.Expr):
        return "".join(header.splitlines(keepends=True)[tree.body[0].end_lineno:])
    return header

def run(table):
    for row in table:
        src, dst = row["from"], row["to"]
        if row["names"] == "*":
            a, b = path_of(src), ROOT / Path(*dst.split("."))
            if a.name == "__init__.py": a = a.parent
            else: b = b.with_suffix(".py")
            b.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", str(a), str(b)], check=True)
            modules[src] = dst
            continue
        src = modules.get(src, src)
        text = path_of(src).read_text(); header, segs = segments(text)
        names = set(row["names"]); have = set().union(*(n for n, _ in segs))
        if missing := names - have: raise SystemExit(f"{src} lacks {missing}")
        go = [s for n, s in segs if n & names]; stay = [s for n, s in segs if not n & names]
        gone = set().union(*(n for n, _ in segs if n & names))
        target = ROOT / Path(*dst.split(".")).with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            theader, tsegs = segments(target.read_text())
            theader = theader.rstrip("\n") + "\n" + "\n".join(l for l in header_without_doc(header).splitlines() if l != "from __future__ import annotations") + "\n"
            new = theader + "".join(s for _, s in tsegs).rstrip("\n") + "\n\n\n" + "".join(go).lstrip("\n")
        else:
            new = f'"""{row["doc"]}"""\n' + header_without_doc(header).rstrip("\n") + "\n" + "".join(go)
            init = target.parent / "__init__.py"
            if not init.exists(): init.write_text(f'"""{row.get("package", "")}"""\n')
        rest = header.rstrip("\n") + "\n" + "".join(stay)
        # what one needs of the other
        u = used("".join(stay)) & gone
        if u: rest = add_import(rest, dst, u)
        stay_names = set().union(set(), *(n for n, _ in segs if not n & names))
        v = used("".join(go)) & stay_names
        if v: new = add_import(new, src, v)
        target.write_text(new)
        if "".join(stay).strip(): path_of(src).write_text(rest)
        else:
            subprocess.run(["git", "rm", "-q", "-f", str(path_of(src))], check=True)
        for name in gone: moved[src, name] = dst
        for name in gone: moved[row["from"], name] = dst
    rewrite_all()

def add_import(text: str, module: str, names) -> str:
    header, _ = segments(text)
    lines = text.splitlines(keepends=True); n = len(header.splitlines())
    return "".join(lines[:n]) + f"from {module} import {', '.join(sorted(names))}\n" + "".join(lines[n:])

def target_module(module: str) -> str:
    for a, b in modules.items():
        if module == a or module.startswith(a + "."): return b + module[len(a):]
    return module

def rewrite_all():
    files = [p for f in FOLDERS for p in (ROOT / f).rglob("*.py")]
    for p in files:
        text = p.read_text(); new = rewrite(text, p)
        if new != text: p.write_text(new)
    # paths and dotted names in prose, strings, configuration
    for p in subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split():
        path = ROOT / p
        if not path.is_file() or path.suffix in {".png", ".sum", ".gz"}: continue
        if re.match(r"docs/decisions/", p): pass
        try: text = path.read_text()
        except UnicodeDecodeError: continue
        new = text
        for a, b in sorted(modules.items(), key=lambda i: -len(i[0])):
            for form in (lambda m: m, lambda m: m.replace(".", "/")):
                new = re.sub(rf"(?<![\w./]){re.escape(form(a))}(?![\w])", form(b), new)
            short_a, short_b = (m.split(".", 1)[1].replace(".", "/") + ".py" for m in (a, b))
            new = re.sub(rf"(?<![\w./-]){re.escape(short_a)}(?!\w)", short_b, new)
        if new != text: path.write_text(new)

def rewrite(text: str, p: Path) -> str:
    try: tree = ast.parse(text)
    except SyntaxError: return text
    lines = text.splitlines(keepends=True); edits = []
    for n in ast.walk(tree):
        if not isinstance(n, ast.ImportFrom) or not n.module or not n.module.startswith(PKG): continue
        groups: dict[str, list[str]] = {}; changed = False
        for a in n.names:
            full = f"{n.module}.{a.name}"; spelled = a.name + (f" as {a.asname}" if a.asname else "")
            if full in modules or any(full.startswith(m + ".") for m in modules if path_of(modules[m]).name == "__init__.py"):
                new = target_module(full); mod, _, last = new.rpartition(".")
                if last != a.name: spelled = f"{last} as {a.asname or a.name}"
                groups.setdefault(mod, []).append(spelled); changed = True; continue
            mod = moved.get((n.module, a.name)) or target_module(n.module)
            changed |= mod != n.module
            groups.setdefault(mod, []).append(spelled)
        if changed:
            indent = " " * n.col_offset
            own = module_name(p)
            last = lines[n.end_lineno - 1]
            comment = "  #" + last.split("  #", 1)[1].rstrip("\n") if "  #" in last and n.lineno == n.end_lineno else ""
            edits.append((n.lineno - 1, n.end_lineno, "".join(f"{indent}from {m} import {', '.join(ns)}{comment}\n" for m, ns in groups.items() if m != own)))
    for s, e, new in sorted(edits, reverse=True): lines[s:e] = [new]
    return "".join(lines)

def module_name(p: Path) -> str:
    return ".".join(p.relative_to(ROOT).with_suffix("").parts)

run(json.loads(Path(sys.argv[1]).read_text()))
