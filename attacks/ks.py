import time, orjson, base64, itertools, string, resource, sys
sys.path.insert(0,'/work/wt/base')
from modelplane_operator.rendering import api_keys
def names(n):
    it=itertools.product('abcdefghijklmnopqrstuvwxyz0123456789',repeat=4)
    return [''.join(x) for x in itertools.islice(it,n)]
def rss():
    for l in open('/proc/self/status'):
        if l.startswith('VmRSS'): return int(l.split()[1])/1024
n=int(sys.argv[1])
ks=names(n)
# values: distinct 1..3 byte keys
doc={"apiVersion":"v1","kind":"Secret","metadata":{"name":"k","namespace":"a","managedFields":[{"manager":"kubectl","fieldsV1":{"f:data":{"f:"+k:{} for k in ks}}}]},
 "data":{k:base64.b64encode(k.encode()[:3]).decode() for k in ks}}
text=orjson.dumps(doc); print('keys',n,'json MB',len(text)/1e6, 'without managedFields', len(orjson.dumps(doc['data']))/1e6)
del doc
r0=rss(); t=time.perf_counter(); m=orjson.loads(text); t1=time.perf_counter(); print('parse s',t1-t,'rss MB',rss()-r0)
r0=rss(); t=time.perf_counter(); d=api_keys.digests(m); t1=time.perf_counter(); print('digests s',t1-t,'rss',rss()-r0, len(d))
held=[x for _ in range(8) for x in d]
t=time.perf_counter(); api_keys.matches('wrong',held); print('matches over 8 secrets s',time.perf_counter()-t)
