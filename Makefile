# Everything that is done with this repository. `make help` lists it.

PREFIX ?= /usr/local
PYTHON ?= python3
CARGO ?= cargo
export CARGO_TARGET_DIR ?= target

RELEASE := $(CARGO_TARGET_DIR)/release
export OVERSPILL_BIN ?= $(abspath $(RELEASE)/overspill)
BINDIR = $(DESTDIR)$(PREFIX)/bin
LIBDIR = $(DESTDIR)$(PREFIX)/lib/overspill

.PHONY: build help install uninstall demo test fmt tidy lint doc unit proof proof-quick programs
.PHONY: programs-quick clean

build: ## Build everything (the default)
	$(CARGO) build --release --workspace

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## Install under PREFIX (default /usr/local; DESTDIR is honoured)
	@# With sudo, cargo is often out of reach: then what `make` built before is installed.
	@if command -v $(CARGO) >/dev/null; then $(MAKE) --no-print-directory build; \
	elif [ ! -x $(RELEASE)/overspill ]; then \
		echo "install: nothing is built: run make first" >&2; exit 1; fi
	install -D -m 755 $(RELEASE)/overspill $(BINDIR)/overspill
	install -D -m 755 $(RELEASE)/liboverspill_preload.so $(LIBDIR)/liboverspill_preload.so

uninstall: ## Remove what install put there
	rm -f $(BINDIR)/overspill $(LIBDIR)/liboverspill_preload.so
	-rmdir $(LIBDIR)

demo: build ## Run a job in a quarter of the memory that it takes, and show the statistics
	demo/demo.sh

test: ## All that CI runs, with one line of counts at the end (under 20 minutes on two cores)
	@$(PYTHON) tests/proof/steps.py build fmt tidy unit programs-quick proof-quick -- lint doc

fmt: ## Check the formatting, where rustfmt exists
	@if ! $(CARGO) fmt --version >/dev/null 2>&1; then echo "skipped: there is no rustfmt"; \
	else $(CARGO) fmt --all --check; fi

tidy: ## The house rules that a program can check: floors, lengths, names in ARCHITECTURE.md
	$(PYTHON) tests/tidy.py

lint: ## clippy without warnings, where it exists
	@if ! $(CARGO) clippy --version >/dev/null 2>&1; then echo "skipped: there is no clippy"; \
	else $(CARGO) clippy --workspace --all-targets -- -D warnings; fi

doc: ## Build the documentation without warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --exclude overspill-cli --no-deps
	@# The command and the library have the same name: in one folder, one would overwrite the other.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -p overspill-cli --no-deps \
		--target-dir $(CARGO_TARGET_DIR)/doc-command

# Of a debug build: it checks the order of locks, and every invariant after each test.
unit: ## The tests in Rust
	$(CARGO) build --workspace
	@# Two tests a processor: a program under overspill waits for the thread that serves its faults
	@# much of the time.
	OVERSPILL_BIN=$(abspath $(CARGO_TARGET_DIR)/debug/overspill) \
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))} \
	$(CARGO) test --workspace --no-fail-fast

proof: build ## Real programs in memory cgroups, at full size (as root; takes long)
	tests/proof/install.sh
	$(PYTHON) tests/proof/proof.py

proof-quick: build ## The same at a quarter of the size or less
	tests/proof/install.sh
	$(PYTHON) tests/proof/proof.py --quick

programs: build ## Everyday programs natively and under overspill (as root; under an hour)
	tests/programs/install.sh
	$(PYTHON) tests/programs/programs.py

# Of those that `programs.py --quick` knows, the ones that take a second or two in thread delivery:
# `make test` stays under 20 minutes.
QUICK = python-fork,python-threads,bash,java-g1,make,rustc,nginx,su,setpriv,unshare,bwrap,tmux,zstd

programs-quick: build ## The small ones of these, in two minutes
	tests/programs/install.sh --quick
	$(PYTHON) tests/programs/programs.py --quick --fault signal
	$(PYTHON) tests/programs/programs.py --only $(QUICK) --fault thread

clean: ## Remove all that was built
	$(CARGO) clean
