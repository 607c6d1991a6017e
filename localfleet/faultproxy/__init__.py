"""The fault proxy: between one client (the operator) and one API server, it records all and breaks what it is told.

    python -m localfleet.faultproxy --upstream-kubeconfig FILE --write-kubeconfig FILE --control-socket WHERE
                                    [--listen 127.0.0.1] [--port 0] [--record FILE] [--record-bodies] [--seed N]
                                    [--uncounted RESOURCE ...]

**How the fleet starts it.** Anywhere that reaches the API server; one process per API server. It makes its own CA,
writes `--write-kubeconfig` (same context names, its own address and CA, a token of its own) and prints one line that
begins with `ready` when it listens. Give that kubeconfig to the operator. A caller's own bearer token reaches the API
server unchanged; without one, or with the written kubeconfig's, the upstream kubeconfig's credentials are used.

**From a test**, `faultproxy.client.start(...)` runs the process and answers a `FaultProxy`, the typed client:

    async with start(upstream=server.kubeconfig, folder=tmp_path) as proxy:      # proxy.kubeconfig is the operator's
        await proxy.add(Rule(Match(mutating_call=7), Signal(pid, when=When.AFTER)))   # kill -9 after call 7's effect
        calls = await proxy.calls(mutating=True)                                  # what a learning run counts

**Rules** (`rules.py`): a `Match` (verbs, group, resource, namespace, name, subresource, user agent; the n-th mutating
call of all, the n-th or every k-th call that matches, a probability) and one action:

    Drop  LoseReply  Delay  Answer  Reset  Slow  Hang  Truncate  Flood  Signal  for requests
    CloseWatch  HoldEvents  OmitEvents  InjectGone                              for watches, open ones too

A rule fires `times` times, or until it is removed. All rules that match act, in the order they were added.
Probabilities are drawn from (seed, rule's place, how often it was asked), so a seed replays.

**Mutating calls** are numbered from 1 in the order they arrive: create, update, patch, delete, deletecollection, but
not dry runs and not what nobody would crash on or what comes by the clock (events, leases, tokens, access reviews:
`--uncounted`).

**Control API** (JSON over the control socket): `GET /status`, `GET|POST|DELETE /rules`, `DELETE /rules/ID`,
`GET /calls?since=POSITION&mutating=1&wait=SECONDS`, `POST /reset`. `--record` writes a JSON line per finished request.
"""
