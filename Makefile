# What a person types. Each target installs what it needs first (vagrant/provision.sh; the second time that takes no time).
PYTHON := .venv/bin/python
N ?= 200000
ARGS ?=
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup build demo demo-shell test bench fuzz lint format vm-test clean need-root

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '%s\n' '' 'Downloads (Debian 12):' \
	  '  setup, and with it every target but clean: the first time about 63 MB by apt (BCC with LLVM, iproute2, nftables;' \
	  '  and 10 MB of package lists) and 41 MB by pip into .venv (26 MB of it mypy and ruff). The second time nothing.' \
	  '  vm-test: the first time 27 MB by apt (QEMU) and a 71 MB kernel package; another KERNEL= its own package and lists.' \
	  '  build, demo, demo-shell, test, bench, fuzz, lint, format: nothing more.'

setup: ## install packages and the virtual environment
	@sh vagrant/provision.sh

build: setup ## compile the BPF programs (only when their sources changed)
	@$(PYTHON) -m lbagent.bpf.build

demo: need-root build ## two minutes of lbagent at work, in namespaces of its own (ATTACH=tc shows the other way)
	@exec $(PYTHON) examples/demo/run.py $(ARGS)

demo-shell: need-root build ## the same set-up, left standing to play with
	@exec $(PYTHON) examples/demo/run.py --shell $(ARGS)

test: need-root build ## all tests, also those that need root, BPF and namespaces (ARGS="-k icmp")
	@exec $(PYTHON) -m pytest $(ARGS)

bench: need-root build ## tables of ratios, and bench/results.json
	@exec $(PYTHON) -m bench $(ARGS)

fuzz: need-root build ## N=1000000 random and broken packets against the programs
	@exec $(PYTHON) -m tests.packet.fuzz $(N) $(ARGS)

lint: setup ## ruff, mypy strict, who may import whom
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@.venv/bin/lint-imports --no-logo

format: setup ## let ruff put the code in order
	@$(PYTHON) -m ruff check --fix --exit-zero .
	@$(PYTHON) -m ruff format .

vm-test: need-root build ## the packet tests on Debian's own kernel (6.1), in a virtual machine (KERNEL=trixie: 6.12)
	@exec vagrant/vm.sh $(ARGS)

clean: ## take away what was built and installed here (not the apt packages)
	rm -rf .venv build dist lbagent/bpf/lbagent.bpf.json* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

need-root:
	@[ "$$(id -u)" = 0 ] || { echo "this needs root: sudo make $(MAKECMDGOALS)" >&2; exit 1; }
