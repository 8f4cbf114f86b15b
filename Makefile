# The commands of this checkout. Each target first installs what it needs (vagrant/provision.sh; nothing to do the second time).
PYTHON := .venv/bin/python
N ?= 200000
ARGS ?=
OTHER ?=
.DEFAULT_GOAL := help
.NOTPARALLEL:
COUNT := $(if $(ALL),0,$(if $(filter command line environment,$(origin N)),$(N),300))
SEED ?= 1
FILES ?=
HOW ?= process
PROCS ?= 12
KILL ?= 0
FOCUS ?= \[sig-network\]
CPUS := $(shell nproc)
JOBS ?= $(shell echo $$(( $(CPUS) < 3 ? 3 * $(CPUS) : 8 )))
QUICK_JOBS ?= $(shell echo $$(( $(CPUS) < 5 ? 2 * $(CPUS) : $(CPUS) + 4 )))
.PHONY: help setup build demo demo-k8s demo-cloud demo-apilb demo-shell fetch test test-quick e2e-cluster bench bench-apilb bench-cloud bench-render bench-compare chaos oracle fuzz mutants lint format docs man charts vm-test clean need-root

help: ## show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '%s\n' '' 'Downloads (Debian 12):' \
	  '  setup, and with it every target but clean: the first time about 65 MB by apt (BCC with LLVM, iproute2, nftables, BIRD, groff;' \
	  '  and 10 MB of package lists) and 67 MB by pip into .venv (26 MB of it mypy and ruff, 4 MB mkdocs). The second time nothing.' \
	  '  vm-test: the first time 27 MB by apt (QEMU) and a 71 MB kernel package; another KERNEL= its own package and lists.' \
	  '  e2e-cluster: what the scripts in CLUSTER build, the first time (docs/conformance.md).' \
	  '  demo-k8s, demo-cloud, fetch and test, where Go is installed: the first time 0.8 GB of Go modules into its cache.' \
	  '  bench-cloud: that too, and MetalLB: 0.4 GB of Go modules.' \
	  '  fetch, and with it test: the first time 0.25 GB of Go modules more, and 49 MB of Debian packages and wheels for the container image;' \
	  '  demo-apilb, where HAProxy is not installed: 2.5 MB of Debian packages, which are unpacked into the cache and not installed.' \
	  '  and 104 MB of Debian packages, unpacked in ~/.cache/lbagent and not installed (podman, Docker, HAProxy, sshd, Prometheus). The second time nothing.' \
	  '  bench-apilb: the first time 18 MB of these (podman, HAProxy, sshd).' \
	  '  build, demo, demo-shell, bench, bench-render, bench-compare, chaos, fuzz, mutants, lint, format, test-quick, docs, man, charts: nothing more.'

setup: ## install packages and the virtual environment
	@sh vagrant/provision.sh

build: setup ## compile the BPF programs (only when their sources changed)
	@$(PYTHON) -m lbagent.bpf.compiler

demo: need-root build ## show the agent at work on real traffic, twelve seconds (ATTACH=tc: the other hook)
	@exec $(PYTHON) examples/demo/run.py $(ARGS)

demo-k8s: need-root build ## the same with a real kube-apiserver, etcd and controllers, one minute (the first time four minutes more, to build Go modules)
	@exec $(PYTHON) examples/demo_k8s/run.py $(ARGS)

demo-cloud: need-root build ## addresses for Services of type LoadBalancer: ARP, BGP and UPnP, while a node and an agent die; 45 seconds
	@exec $(PYTHON) examples/demo_cloud/run.py $(ARGS)

demo-apilb: need-root build ## kubelets with three API servers that die, are drained and added: native mode, and HAProxy for comparison; one minute
	@exec $(PYTHON) examples/demo_apilb/run.py $(ARGS)

demo-shell: need-root build ## set up the namespaces of the demo and open a shell there
	@exec $(PYTHON) examples/demo/run.py --shell $(ARGS)

fetch: setup ## download what tests need from outside into ~/.cache/lbagent; `test` does it first (nothing to do the second time)
	@$(PYTHON) -m tests.fetch

test: need-root build $(if $(strip $(ARGS)),,fetch) ## run all tests, also those that need root, BPF and namespaces (ARGS="-k icmp"); without ARGS they need no network
	@exec env -u PYTHONDONTWRITEBYTECODE $(PYTHON) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-quick: setup ## run the tests that need neither root nor BPF, as any user, in a minute (ARGS="-k decode"); what it leaves out: CONTRIBUTING.md
	@exec env -u PYTHONDONTWRITEBYTECODE $(PYTHON) -m pytest -q -n $(QUICK_JOBS) --dist loadfile --no-loadscope-reorder -m "not root and not bpf and not slow and not long" \
	  $(addprefix --ignore=tests/,packet e2e chaos lab) $(ARGS)

e2e-cluster: need-root build ## run Kubernetes' own e2e suite against agents in a real cluster (CLUSTER=FOLDER of its scripts, HOW=daemonset, PROCS=, KILL=20)
	@[ -n "$(CLUSTER)" ] || { echo "CLUSTER=FOLDER: the scripts of a cluster, see docs/conformance.md" >&2; exit 2; }
	@exec $(PYTHON) -m tests.conformance --cluster "$(CLUSTER)" --how $(HOW) --procs $(PROCS) --kill $(KILL) --focus "$(FOCUS)" $(ARGS)

bench: need-root build ## run the benchmarks; prints tables and writes bench/results.json
	@exec $(PYTHON) -m bench $(ARGS)

bench-apilb: need-root build ## measure load balancers of API servers, native mode beside Debian's HAProxy: handshakes, changes, failures, watches; twelve minutes (ARGS="--only ROW --times N --quick")
	@exec $(PYTHON) -m bench.apilb $(ARGS)

bench-cloud: need-root build ## measure addresses of LoadBalancers beside MetalLB 0.13.5: gaps when nodes die, 1,000 Services at once; an hour (ARGS="--only ROW --times N")
	@exec $(PYTHON) -m bench.cloud $(ARGS)

bench-render: need-root build ## measure nftables beside kube-proxy's nftables mode: 10,000 Services at once, a change, connections, verify, shadow; ten minutes (ARGS="--only ROW --times N --quick")
	@exec $(PYTHON) -m bench.render $(ARGS)

bench-compare: need-root build ## compare the packet programs with those of another built checkout (OTHER=../before)
	@exec $(PYTHON) -m bench.compare $(OTHER) $(ARGS)

chaos: need-root build ## break everything around the agent for ten minutes and check its clients (SEED=: the same order of faults)
	@exec $(PYTHON) -m tests.chaos $(if $(filter command line environment,$(origin SEED)),--seed $(SEED)) $(ARGS)

oracle: need-root build ## serve random folders by BPF and by nftables and print what differs (N=300: number of folders, SEED=: the same folders, ARGS=--kube-proxy: beside the real kube-proxy)
	@exec $(PYTHON) -m tests.oracle --folders $(if $(filter command line environment,$(origin N)),$(N),300) $(if $(filter command line environment,$(origin SEED)),--seed $(SEED)) $(ARGS)

fuzz: need-root build ## run random and invalid packets through the programs (N=1000000: number of packets)
	@exec $(PYTHON) -m tests.packet.fuzz $(N) $(ARGS)

mutants: need-root build ## change the sources in small ways and list the changes that no test detects (N=, SEED=, FILES=, ALL=1)
	@exec nice $(PYTHON) -m tests.mutants -n $(COUNT) --seed $(SEED) $(ARGS) $(FILES)

lint: setup ## check the code: ruff, mypy strict, which module may import which; tables of the documents; plain words in documents and code
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@.venv/bin/lint-imports --no-logo
	@$(PYTHON) -m tests.docs.tables --check
	@$(PYTHON) -m tools.docs.plain_words

format: setup ## format the code with ruff
	@$(PYTHON) -m ruff check --fix --exit-zero .
	@$(PYTHON) -m ruff format .

docs: setup ## build the documents as a site into build/site (open index.html; no network)
	@$(PYTHON) -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

man: setup ## write the manual pages into build/man, one for each command, and check them with groff
	@$(PYTHON) -m tools.docs.man_pages
	@groff -ww -man -Tutf8 build/man/*.1 >/dev/null

charts: setup ## draw docs/comparison.svg from bench/results.json
	@$(PYTHON) -m tools.docs.charts

vm-test: need-root build ## run the packet tests on Debian's kernel 6.1 in a virtual machine (KERNEL=trixie: 6.12)
	@exec vagrant/vm.sh $(ARGS)

clean: ## remove what was built and installed in this checkout (not the apt packages)
	rm -rf .venv build dist lbagent/bpf/lbagent.*bpf.json* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

need-root:
	@[ "$$(id -u)" = 0 ] || { echo "this needs root: sudo make $(MAKECMDGOALS)" >&2; exit 1; }
