import sys; sys.path.insert(0,'/work/wt/base')
import json
from dataclasses import replace
from tests.planning import test_model_service as S, test_model_endpoint as E
from modelplane_operator.planning.model_service import plan as splan
from modelplane_operator.planning.model_endpoint import plan as eplan
from modelplane_operator.api import names
from tests.support.builders import NAMESPACE
# 1: replica's endpoint, tenant rewrites rewritePath to another tenant's replica
victim = f"/team-b/{names.replica('team-b','llama','worker-1',0)}/"
gw="10.1.2.3"
before = E.settled(E.of_replica(f"http://{gw}{E.REPLICAS}v1", gateway=gw))
print('endpoint status before', eplan(before).status.routing)
changed = eplan(E.of_replica(f"http://{gw}{E.REPLICAS}v1", *before.children, gateway=gw, path=victim))
print('endpoint plan after edit: steps', changed.steps, 'status', changed.status)
ep = S.endpoint("mine-a7f4dd03e4", url=f"http://{gw}/v1", rewritePath=victim, routed=f"http://{gw}:80")
p = splan(S.seen(S.service((1,"a")), ep))
for s in p.steps:
    m=getattr(s,'manifest',None)
    if m and m['kind']=='HTTPRoute': print(json.dumps(m['spec']['rules'],indent=1))
# 2: hostile cluster says its gateway is a provider
out = E.settled(E.users(E.PROVIDER, names=E.names("34.55.100.10")))
print('routing ok:', E.routing(out))
after = E.settled(E.users(E.PROVIDER, *out.children, gateways=("api.together.xyz",), names=E.names("34.55.100.10")))
print('after hostile gateway address:', E.kinds(after.children), E.reported(after))
# 3: gateways by host name only
print('ELB by IP:', E.reported(E.users("http://34.55.100.10", gateways=("abc.elb.amazonaws.com",))))
# 4 front door
print(E.reported(E.users("https://models.example.com/")), )
