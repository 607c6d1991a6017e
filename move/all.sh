set -e
B=.venv/bin
mkdir -p modelplane_operator/runtime && echo '"""How a reconcile runs, whatever the kind: queue, workers, loop, steps, leadership, health."""' > modelplane_operator/runtime/__init__.py
python3 /root/wip/move/move.py /root/wip/move/table.json
for t in collection:informer watching:reflector secrets:referenced; do [ -f tests/clients/test_${t%:*}.py ] && git mv tests/clients/test_${t%:*}.py tests/clients/test_${t#*:}.py; done
python3 /root/wip/move/post.py
$B/ruff check --fix --quiet --unsafe-fixes --select F401,I . ; $B/ruff format --quiet .
python3 /root/wip/move/rename.py /root/wip/move/renames.txt
python3 /root/wip/move/post2.py
$B/ruff check --fix --quiet --select F401,F811,I,RUF022 . ; $B/ruff format --quiet .; $B/ruff check . | tail -30
python3 /root/wip/move/post3.py
$B/ruff format --quiet .; $B/ruff check --output-format concise . | tail
