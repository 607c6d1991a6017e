import sys; sys.path.insert(0,'/work/wt/base')
from tests.planning import test_inference_gateway as G
from dataclasses import replace
s = G.judged(G.written(G.seen(G.gateway())))
print('honest', G.plan(s).status.address, G.plan(s).status.url)
live=[c for c in s.children if c['kind']=='Gateway'][0]
fake={**live,'metadata':{**live['metadata'],'namespace':'a-tenant','uid':'x','finalizers':['example.com/mine'],'deletionTimestamp':'2026-01-01T00:00:00Z'},
 'spec':{**live['spec'],'gatewayClassName':'istio'},'status':{**live['status'],'addresses':[{'type':'IPAddress','value':'203.0.113.66'}]}}
p=G.plan(replace(s, children=(fake,*s.children)))
print('with fake', p.status.address, p.status.url, [str(x) for x in p.steps])
from tests.planning import test_model_service as S
from modelplane_operator.planning.model_service import plan as splan
from modelplane_operator.api.inference_gateway import InferenceGateway
g = InferenceGateway.parse({"metadata":{"name":"default"},"spec":{"backend":"Traefik","traefik":{"version":"40.2.0"},"auth":{"mode":"APIKeys","apiKeys":{"secretRefs":[{"name":"keys"}]}}},"status":{"address":"34.55.100.10"}})
w = S.written(S.seen(S.service((1,"a")), S.endpoint("one"), behind=g))
print(sorted({c['kind'] for c in w.children}))
p2=splan(replace(w, gateway=None))
print([str(x) for x in p2.steps]); 
for x in p2.steps:
    m=getattr(x,'manifest',None)
    if m and m['kind']=='HTTPRoute': print(m['spec']['rules'])
