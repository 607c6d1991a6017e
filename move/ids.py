import tokenize, sys, collections, pathlib
c=collections.Counter(); where=collections.defaultdict(set)
for f in ["modelplane_operator"]:
    for p in pathlib.Path(f).rglob("*.py"):
        with open(p,'rb') as h:
            for t in tokenize.tokenize(h.readline):
                if t.type==tokenize.NAME: c[t.string]+=1; where[t.string].add(str(p).replace("modelplane_operator/",""))
words=sys.argv[1:]
for n,k in sorted(c.items()):
    if any(w in n.lower() for w in words): print(k, n, "|", *sorted(where[n])[:5])
