import sys; sys.path.insert(0,'/work/wt/base')
from tests.planning import test_inference_gateway as G
import inspect
print([n for n in dir(G) if not n.startswith('_')][:80])
