"""Rename identifiers, by token: rename.py TABLE. Lines of TABLE: `old new [glob ...]`, `@module:old new`, `~word new glob ...` (docstrings and comments)."""
import ast, fnmatch, io, re, sys, tokenize
from pathlib import Path
ROOT = Path.cwd()
FILES = [p for f in ("modelplane_operator", "tests", "scripts", "benchmarks") for p in sorted(Path(f).rglob("*.py"))]
rows, bound, prose = [], [], []
for line in Path(sys.argv[1]).read_text().splitlines():
    line = line.split("#")[0].split()
    if not line: continue
    if line[0].startswith("@"):
        module, _, old = line[0][1:].rpartition(":"); bound.append((module, old, line[1]))
    elif line[0].startswith("~"): prose.append((line[0][1:], line[1].replace("_", " "), line[2:]))
    else: rows.append((line[0], line[1], line[2:] or ["*"]))

def applies(p, globs): return any(fnmatch.fnmatch(str(p), g) for g in globs)

for p in FILES:
    text = p.read_text()
    names = {old: new for old, new, globs in rows if applies(p, globs)}
    dotted = "/".join(p.with_suffix("").parts).replace("/", ".")
    imported = {(n.module, a.name) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and n.module for a in n.names}
    own = {}
    for module, old, new in bound:
        if dotted in (module, module + ".__init__") or (module, old) in imported: own[old] = new
    words = {old: new for old, new, globs in prose if applies(p, globs)}
    if not names and not own and not words: continue
    lines = text.splitlines(keepends=True)
    edits = []  # (row, start, end, new)
    prev = ""; before = ""
    for t in tokenize.generate_tokens(io.StringIO(text).readline):
        s = t.string
        if t.type == tokenize.NAME:
            new = None
            if s in own and prev != ".": new = own[s]
            elif s in names and not (s == "collections" and prev not in (".", "def")) : new = names[s]
            if s == "collections" and prev == "from": new = None
            if new: edits.append((t.start, t.end, new))
        elif t.type == tokenize.STRING and re.match(r"[rR]?[fF]", s):
            def braces(m):
                return re.sub(r"[A-Za-z_]\w*", lambda w: own.get(w[0]) or names.get(w[0], w[0]), m[0])
            out = re.sub(r"(?<!\{)\{[^{}]+\}", braces, s)
            if out != s: edits.append((t.start, t.end, out))
        elif t.type == tokenize.STRING and s.strip('"') in names and re.fullmatch(r'"[A-Z]\w+"', s):
            edits.append((t.start, t.end, '"' + names[s.strip('"')] + '"'))
        if words and (t.type == tokenize.COMMENT or (t.type == tokenize.STRING and s.startswith(('"""', 'r"""')))):
            out = s
            for old, new in words.items():
                out = re.sub(rf"\b{old}\b", new, out)
                out = re.sub(rf"\b{old.capitalize()}\b", new.capitalize(), out)
            out = re.sub(r"\b([Aa]) (informer|idle)\b", r"\1n \2", out)
            if out != s: edits.append((t.start, t.end, out))
        if t.type not in (tokenize.NL, tokenize.COMMENT): prev = s
    if not edits: continue
    offsets = [0]
    for l in lines: offsets.append(offsets[-1] + len(l))
    out = text
    for (r1, c1), (r2, c2), new in sorted(edits, reverse=True):
        out = out[: offsets[r1 - 1] + c1] + new + out[offsets[r2 - 1] + c2 :]
    p.write_text(out)
