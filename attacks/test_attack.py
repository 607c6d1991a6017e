from __future__ import annotations
import asyncio, base64, itertools, os, resource, time
import aiohttp, pytest
from modelplane_operator.api import ModelEndpoint, ModelService
from modelplane_operator.api.base import Key
from modelplane_operator.clients.kube import connect
from modelplane_operator.clients.limits import Limits
from modelplane_operator.clients.errors import Misbehaving
from modelplane_operator.clients.resources import CONFIG_MAP
from modelplane_operator.api import labels
from tests.clients.conftest import access, kube
from tests.controllers.test_routing import *  # noqa
from tests.controllers.test_routing import front, keys, hub, backend, endpoint, service, secret, guarded, asking, TEAM
for _n in [n for n in list(globals()) if n.startswith('test_')]:
    del globals()[_n]
pytestmark = pytest.mark.fleet
PATH = "/inner/v1/models?all=1"

def say(*a):
    with open('/tmp/attack/out.txt','a') as f: print(*a, file=f, flush=True)

async def poll(hub, name, seconds, want):
    end = time.monotonic()+seconds; got=None
    while time.monotonic() < end:
        try: got = (await hub.answer(name))[0]
        except OSError as e: got = repr(e)
        if got == want: return got, round(seconds-(end-time.monotonic()),1)
        await asyncio.sleep(0.5)
    return got, seconds

async def test_newline_in_rewrite_path(hub):
    if hub.front.backend != "EnvoyGateway": pytest.skip("envoy")
    await hub.apply(hub.gateway("default"), endpoint("one", hub.backend), service("chat", "one"))
    await hub.until_answered("chat", 200, PATH)
    await hub.apply(service("before", "one"))
    say('NEWLINE control: a new service answers', await poll(hub, "before", 20, 200))
    await hub.apply(endpoint("evil", hub.backend, rewritePath="/x\ny"), service("evil", "evil"))
    await asyncio.sleep(6)
    say('NEWLINE evil says', hub.said(ModelEndpoint,"evil"), hub.said(ModelService,"evil"))
    await hub.apply(service("late", "one"))
    say('NEWLINE after: new service of a neighbour', await poll(hub, "late", 25, 200), hub.said(ModelService,"late"))
    await hub.apply(secret("keys", a="k"), guarded("chat", "one", auth=asking("keys")))
    say('NEWLINE after: chat asks for keys; without a key', await poll(hub, "chat", 15, 401), hub.said(ModelService,"chat","AuthReady"), hub.said(ModelService,"chat"))
    await hub.delete(ModelService, "evil"); await hub.delete(ModelEndpoint, "evil")
    say('NEWLINE gone: late', await poll(hub, "late", 30, 200), 'chat', await poll(hub, "chat", 15, 401))
    say(os.popen(f"grep -h -i 'prefix_rewrite\\|PrefixRewrite\\|failed to translate xds' {hub.front.log} /tmp/pytest-of-root/*/front*/envoy/*log* 2>/dev/null | tail -2 | cut -c1-600").read())

async def test_pages(api, access):
    async with connect(access) as k:
        for i in range(9):
            await k.create({"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":f"copy-{i}","namespace":"default","labels":{labels.OWNER_UID:"u"}},"data":{"k":"x"*1_000_000}})
    async with connect(access, limits=Limits()) as k:
        try:
            r = await k.list(CONFIG_MAP, selector=labels.OWNER_UID); say('PAGES listed', len(r.items))
        except Misbehaving as e: say('PAGES Misbehaving:', e)

def rss(pid):
    for l in open(f'/proc/{pid}/status'):
        if l.startswith('VmRSS'): return int(l.split()[1])//1024

async def test_keys(api, kube, keys):
    ks=[''.join(x) for x in itertools.islice(itertools.product('abcdefghijklmnopqrstuvwxyz0123456789',repeat=4),25000)]
    data={k: base64.b64encode(k[1:].encode()).decode() for k in ks}
    n=0
    import modelplane_operator.clients.wire as W, modelplane_operator.clients.kube as KK; W.DEADLINE=60.0; W.Wire.ask.__kwdefaults__["deadline"]=60.0
    async def more(m):
        nonlocal n
        for _ in range(m):
            t0=time.monotonic()
            s=await kube.create({"apiVersion":"v1","kind":"Secret","metadata":{"name":f"big-{n}","namespace":"default"},"data":data}); n+=1; n==1 and say("KEYS one create took", round(time.monotonic()-t0,1))
    try: await more(8)
    except Exception as e: say('KEYS create', repr(e)[:300]); raise
    await kube.create({"apiVersion":"v1","kind":"Secret","metadata":{"name":"small","namespace":"default"},"data":{"a":base64.b64encode(b"good").decode()}})
    url=f"http://127.0.0.1:{keys.port}/keys/default/"
    pid=keys.process.pid
    async with aiohttp.ClientSession() as s:
        async def ask(path,key):
            t=time.monotonic()
            async with s.get(url+path,headers={"Authorization":"Bearer "+key}) as a: return a.status, round(time.monotonic()-t,2)
        say('KEYS small before', await ask("small","good"), 'rss', rss(pid))
        big="/".join(f"big-{i}" for i in range(8))
        say('KEYS one request over 8 big', await ask(big,"wrong"), await ask(big,"wrong"), 'rss', rss(pid))
        stop=False
        async def flood():
            while not stop: await ask(big,"wrong")
        fl=[asyncio.create_task(flood()) for _ in range(16)]
        await asyncio.sleep(2)
        worst=[]
        for _ in range(20):
            worst.append(await ask("small","good")); await asyncio.sleep(0.3)
        say('KEYS small while 4 clients ask the attacker\'s own URL', worst)
        stop=True
        await asyncio.gather(*fl)
        await more(72)
        for b in range(8,80,8): 
            await ask("/".join(f"big-{i}" for i in range(b,b+8)),"wrong"); say('KEYS rss after', b+8, 'secrets', rss(pid))
        await asyncio.sleep(5); say('KEYS rss 5 s later', rss(pid))

async def test_loop(hub):
    if hub.front.backend != "Traefik": pytest.skip("traefik")
    pid=hub.front.process.pid
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (4000,4000))
    await hub.apply(hub.gateway("default"), endpoint("one", hub.backend), service("chat", "one"),
       endpoint("loop", f"http://{own_address()}:{hub.front.port}", rewritePath=f"/{TEAM}/loop/"))
    await hub.until_answered("chat", 200, PATH)
    await hub.apply(service("loop","loop"))
    await asyncio.sleep(3)
    say('LOOP endpoint', hub.said(ModelEndpoint,"loop"))
    say('LOOP before: fds', len(os.listdir(f'/proc/{pid}/fd')), 'rss', rss(pid))
    async def once():
        try: return await hub.answer("loop")
        except Exception as e: return repr(e)[:80]
    t=asyncio.create_task(once())
    for i in range(5):
        await asyncio.sleep(1)
        t0=time.monotonic()
        try: chat=await asyncio.wait_for(hub.answer("chat"),5)
        except Exception as e: chat=repr(e)[:80]
        say('LOOP', i+1,'s: fds', len(os.listdir(f'/proc/{pid}/fd')), 'rss', rss(pid), 'chat', chat, round(time.monotonic()-t0,2))
    say('LOOP request itself', await t)
