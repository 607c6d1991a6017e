import sys; sys.path.insert(0,'/work/wt/base')
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.shared import PodTemplate
from modelplane_operator.api.inference_cluster import PodIsolation, Isolation
from modelplane_operator.api import names
from modelplane_operator.rendering.allowed import allowed, left_out
from modelplane_operator.rendering.model_replica.endpoint_picker import render_picker
from modelplane_operator.rendering.model_replica.deployment import render_deployment
from modelplane_operator.rendering.model_replica.fences import render_fences
from modelplane_operator.rendering.model_replica.part import Part
from modelplane_operator.rendering.model_replica.pods import DEFAULT_LIFECYCLE
rn = names.replica('team-a','mine','worker-1',0)
t = PodTemplate.model_validate({"metadata":{"labels":{"app": names.picker(rn)}},"spec":{"containers":[{"name":"engine","image":"evil/ext-proc:1"}]}})
print('left out:', list(left_out(t, PodIsolation())))
t2 = allowed(t, PodIsolation())
r = ModelReplica.parse({"apiVersion":"modelplane.ai/v1alpha1","kind":"ModelReplica","metadata":{"name":rn,"namespace":"team-a","uid":"u"},
 "spec":{"clusterName":"worker-1","podRevision":2,"engines":[{"name":"e","copies":1,"members":[{"role":"Standalone","nodePoolName":"p","template":t2.to_manifest(),"deviceRequests":[]}]}]}})
pod = render_deployment(r, r.spec.engines[0], Part(), DEFAULT_LIFECYCLE)["spec"]["template"]["metadata"]["labels"]
svc = [m for m in render_picker(r) if m["kind"]=="Service"][0]["spec"]
print('pod labels', pod); print('picker Service', svc)
print('selected:', all(pod.get(k)==v for k,v in svc["selector"].items()))
np=[m for m in render_fences('team-a','u',Isolation()) if m['kind']=='NetworkPolicy'][0]['spec']
print(np['podSelector'], np['ingress'][1])
