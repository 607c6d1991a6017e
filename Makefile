# `make` prints what there is to do. Everything runs from the virtual environment that `make setup` makes.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
# Over as many workers as the machine carries; what shares a fleet stays together (tests/support).
SPREAD := $(BIN)/pytest -p tests.support.run --numprocesses=auto
# uv reads its own variable for a package index; a value for pip's is meant for both.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

# Tests and the fleet start hundreds of Pythons, and each is up in a third of the time when what it imports is compiled.
unexport PYTHONDONTWRITEBYTECODE

##@ Start here

help:  ## Show this list
	@awk 'BEGIN {FS = ":.*  ## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*  ## / {printf "  \033[36m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.complete  ## Make the virtual environment from the locked requirements

demo: setup  ## A fleet on this machine, the operator, and a model that answers
	@$(BIN)/python scripts/demo.py

demo-down: setup  ## End all of that
	@$(BIN)/python scripts/demo.py --down

demo-cloud: setup  ## Clusters on EKS and GKE (stand-ins of both), from apply to an answer, and from delete to nothing
	@$(BIN)/python -m scripts.demo_cloud

fleet: setup  ## The bare fleet: a hub and two workload clusters, for trying things by hand
	@$(BIN)/python -m localfleet up --audit

fleet-binaries: setup  ## Pack the fleet's programs for machines of this kind: FLEET_BINARIES=file#sha256 takes them (PUBLISHED=URL: docs/releases.md)
	@$(BIN)/python -m localfleet pack dist $(if $(PUBLISHED),--published $(PUBLISHED))

fleet-down: demo-down  ## The same as demo-down

test: setup  ## Run the pure tests, and the most telling ones on real API servers (built once): docs/internals/testing.md
	$(BIN)/python -m localfleet build etcd kube-apiserver kubectl helm
	$(SPREAD) --hypothesis-profile=quick -m "(server or not (fleet or faults or oracle or processes)) and not slow and not long"

test-fleet: setup  ## Run the tests on fleets, and the pure ones with more examples: CI runs them after those
	$(BIN)/python -m localfleet build
	$(SPREAD) -m "(not faults or fleet) and not server and not slow and not long"

test-slow: setup  ## Run the tests that take minutes each: CI runs them last
	$(BIN)/python -m localfleet build
	$(SPREAD) -m "(not faults or fleet) and slow and not long"

test-all: setup  ## Run every test; for hours
	$(BIN)/python -m localfleet build
	$(SPREAD) -m ""

test-faults: setup  ## Kill the operator at every write, break every wire; for long (SHARD=1/4: a part, FAULTS_SEED=N: again)
	$(BIN)/python -m localfleet build
	$(BIN)/pytest -m faults tests/faults

kind: kind-needs setup image-files  ## A hub and two clusters of real nodes, by kind, with the operator on it (docs/kind.md)
	@$(BIN)/python -m scripts.image build modelplane-operator:kind $(if $(BASE_IMAGE),--base $(BASE_IMAGE))
	@$(BIN)/python -m scripts.kind up $(BARE)

kind-bare: BARE := --bare
kind-bare: kind  ## The same without the operator: to type docs/install.md by hand

kind-down: setup  ## End all of that
	@$(BIN)/python -m scripts.kind down

kind-needs:
	@$(PYTHON) scripts/kind/needs.py

e2e-kind: kind-needs .venv-e2e/.complete kind  ## Run tests/e2e on them (KIND_KEEP=1: keep the clusters)
	@.venv-e2e/bin/pytest tests/e2e -p no:randomly -m ""
	@$(if $(KIND_KEEP),,$(BIN)/python -m scripts.kind down)

##@ While you work

check: setup  ## Format, lint, contracts, generated files; types and pure tests that the change reaches (SINCE=commit)
	@$(BIN)/python -m scripts.check $(if $(SINCE),--since $(SINCE))

check-all: setup  ## The same with the types of everything, and no tests
	@$(BIN)/python -m scripts.check --all

fmt: setup  ## Format the code and mend what the linter can mend
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --fix --quiet .

lint: setup  ## Lint only
	$(BIN)/ruff check .

type: setup  ## Type-check only
	$(BIN)/pyright

crds: setup  ## Write the generated files: crds/, docs/reference/, tables of pages, the chart's schema and more
	$(BIN)/python scripts/generate.py

bench: setup  ## Measure against targets; writes docs/internals/performance-tables.md and the table of docs/scaling.md
	$(BIN)/python -m benchmarks

golden: setup  ## Rewrite the expected outputs of pure tests: read the diff before you commit it (the others: docs/internals/testing.md)
	$(BIN)/pytest --quiet --golden-update $$(grep -rlw --include='test_*.py' golden tests)

image image-push: IMAGE ?= modelplane-operator:dev
image: image-files  ## Build the operator's image (IMAGE=name:tag, BASE_IMAGE=a Python 3.11 or newer)
	@$(BIN)/python -m scripts.image build $(IMAGE) $(if $(BASE_IMAGE),--base $(BASE_IMAGE))

image-push: image  ## Build and push it: IMAGE=registry.example.com/modelplane-operator:0.1.0
	@$(BIN)/python -m scripts.image push $(IMAGE)

image-files: setup  ## What the image has beside Python, into build/image: Helm for this kind of machine, definitions
	@mkdir -p build/image
	@cp "$$($(BIN)/python -c 'from localfleet import binaries; print(binaries.ensure("helm", of_machine=False)["helm"])')" build/image/helm
	@$(BIN)/python scripts/definitions.py build/image/definitions \
		--go "$$($(BIN)/python -c 'from localfleet import binaries; print(binaries.go().path)')"

chart: setup crds  ## Lint and package the Helm chart into dist/
	@helm=$$($(BIN)/python -c 'from localfleet import binaries; print(binaries.ensure("helm")["helm"])'); \
	$$helm lint charts/modelplane-operator && $$helm package charts/modelplane-operator --destination dist

release: DIGESTS ?= written
release: image-files crds  ## All of a release, made twice and compared, and the fleet's programs, into dist/ (DIGESTS=none; SIGNING_KEY=file: docs/releases.md)
	@$(BIN)/python -m scripts.release --fleet --helm build/image/helm --digests $(DIGESTS) $(if $(SIGNING_KEY),--key $(SIGNING_KEY)) \
		--go "$$($(BIN)/python -c 'from localfleet import binaries; print(binaries.go().path)')"

lock:  ## Resolve the dependencies again and write requirements.txt
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet -o requirements.txt
	$(BIN)/uv pip compile pyproject.toml --extra hydrate --extra eks --extra gke --extra otel --constraint requirements.txt --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet -o requirements-image.txt
	$(BIN)/uv pip compile pyproject.toml --all-extras --group e2e --constraint requirements.txt --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet -o requirements-e2e.txt

digests: setup  ## Ask the registries for the digests of images, charts and the base, and write them down: for a release
	$(BIN)/python -m scripts.digests
	$(BIN)/ruff format --quiet modelplane_operator/clusters/stack/digests.py

digests-check: setup  ## Fail when a digest is missing: for whoever publishes a release
	$(BIN)/python -m scripts.digests --check

audit: image-files  ## List known vulnerabilities of the Go modules in Helm, charts and images
	@$(BIN)/python -m scripts.audit --helm build/image/helm --go "$$($(BIN)/python -c 'from localfleet import binaries; print(binaries.go().path)')"

clean:  ## Remove what was built here (the cache of built binaries stays)
	rm -rf .venv .venv-e2e build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# tests/e2e alone: what nobody else needs, in an environment of its own (pyproject.toml says why).
.venv-e2e/.complete: requirements-e2e.txt .venv/.complete
	@echo "setting up .venv-e2e"
	@$(PYTHON) -m venv --clear --without-pip .venv-e2e
	@$(BIN)/uv pip sync --quiet --require-hashes --python .venv-e2e/bin/python requirements-e2e.txt
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --python .venv-e2e/bin/python -e .
	@touch $@

# pip installs uv alone, from the same lock and by the same hashes: uv then installs the rest in a quarter of the time.
.venv/.complete: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make setup: $(PYTHON) is older than 3.11; name a newer one: make setup PYTHON=python3.12" >&2; exit 1; }
	@[ ! -L .venv ] || { echo "make setup: .venv is a link, and what it leads to would be emptied; remove the link" >&2; exit 1; }
	@echo "setting up .venv"
	@$(PYTHON) -m venv --clear .venv
	@awk '/^uv==/ {on = 1; print; next} /^[^ ]/ {on = 0} on' requirements.txt > .venv/uv.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
	@$(BIN)/uv pip sync --quiet --require-hashes --python $(BIN)/python requirements.txt
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python -e .
	@touch $@

.PHONY: audit help setup demo demo-down demo-cloud fleet fleet-binaries fleet-down kind kind-bare kind-down kind-needs e2e-kind test test-slow test-all test-faults check check-but-types fmt lint type crds golden bench image image-push image-files chart release lock clean
