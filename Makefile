# Everything that is done with this repository. `make help` lists it.

PREFIX ?= /usr/local
PYTHON ?= python3
CARGO ?= cargo
export CARGO_TARGET_DIR ?= target

RELEASE := $(CARGO_TARGET_DIR)/release
export OVERSPILL_BIN ?= $(abspath $(RELEASE)/overspill)
# What is installed, as it lies below PREFIX.
TREE ?= $(CARGO_TARGET_DIR)/tree

.PHONY: build product tree help install uninstall packages demo test test-packages fmt tidy audit
.PHONY: python python-test publish-check lint doc unit unit-build proof proof-quick programs
.PHONY: programs-quick clean

build: ## Build everything (the default)
	$(CARGO) build --release --workspace
	@$(MAKE) --no-print-directory tree

product: ## Build what is installed: the command, its libraries, manual pages, completions
	$(CARGO) build --release -p overspill-cli -p overspill-preload -p overspill-c \
		-p overspill-packaging
	@$(MAKE) --no-print-directory tree

tree: $(TREE)/bin/overspill ## Put what was built together as it is installed, in target/tree

# What is there already is left alone: others may use it, or be about to make it.
$(TREE)/bin/overspill: $(RELEASE)/overspill $(RELEASE)/liboverspill_preload.so \
		$(RELEASE)/liboverspill_c.a $(RELEASE)/overspill-pages packaging/install.sh crates/c/link.sh
	@rm -rf $(TREE)
	@install -D -m 755 $(RELEASE)/liboverspill_preload.so $(TREE)/lib/overspill/liboverspill_preload.so
	@install -D -m 755 packaging/install.sh $(TREE)/install.sh
	@$(RELEASE)/overspill-pages $(TREE)
	@install -D -m 644 $(RELEASE)/liboverspill_c.a $(TREE)/lib/liboverspill.a
	@crates/c/link.sh $(RELEASE)/liboverspill_c.a $(TREE)/lib
	@install -D -m 755 $(RELEASE)/overspill $@

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## Install under PREFIX (default /usr/local; DESTDIR is honoured)
	@# With sudo, cargo is often out of reach: then what `make` built before is installed.
	@if command -v $(CARGO) >/dev/null; then $(MAKE) --no-print-directory product; \
	elif [ ! -x $(TREE)/install.sh ]; then \
		echo "install: nothing is built: run make first" >&2; exit 1; fi
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" $(TREE)/install.sh

uninstall: ## Remove what install put there
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" packaging/install.sh uninstall

packages: product ## Build a tarball, a .deb and an .rpm in target/packages, and try each
	rm -rf $(CARGO_TARGET_DIR)/packages
	mkdir -p $(CARGO_TARGET_DIR)/packages
	packaging/package.sh $(abspath $(RELEASE)) $(abspath $(TREE)) \
		$(abspath $(CARGO_TARGET_DIR)/packages)

python: ## Build the wheel of the Python module in target/python/wheels (pip gets maturin)
	$(PYTHON) crates/python/wheel.py

python-test: ## The same, install it in a fresh environment, and run its tests
	$(PYTHON) crates/python/wheel.py --test

demo: product ## Run a job in a quarter of the memory that it takes, and show the statistics
	demo/demo.sh

test: ## All that CI runs, with one line of counts at the end (22 to 35 minutes on two cores)
	@$(PYTHON) tests/proof/steps.py \
		fmt tidy audit product+test-packages+lint+unit-build unit+packages \
		programs-quick+doc+proof-quick

test-packages: ## Install the programs that `make test` tests with (Debian or Ubuntu, as root)
	tests/proof/install.sh
	tests/programs/install.sh --quick

fmt: ## Check the formatting, where rustfmt exists
	@if ! $(CARGO) fmt --version >/dev/null 2>&1; then echo "skipped: there is no rustfmt"; \
	else $(CARGO) fmt --all --check; fi

tidy: ## The house rules that a program can check: floors, lengths, names in ARCHITECTURE.md
	$(PYTHON) tests/tidy.py

audit: ## Known flaws, licences and sources of the dependencies; says what it cannot look at here
	$(PYTHON) tests/audit.py

# The command and the preload library are packed only: to be built they need a registry with these.
publish-check: PUBLISH = $(CARGO) publish --dry-run --allow-dirty
publish-check: PACKED = $(CARGO_TARGET_DIR)/publish-check.txt
publish-check: ## Pack the crates that may be published, build the libraries from that (registry)
	@mkdir -p $(CARGO_TARGET_DIR)
	@{ $(PUBLISH) -p overspill-os -p overspill && \
		$(PUBLISH) --no-verify -p overspill-os -p overspill -p overspill-preload -p overspill-cli; \
	} >$(PACKED) 2>&1 || { cat $(PACKED); exit 1; }
	@# Each package is told that nothing of it was published; any other warning is one.
	@! grep -A 3 '^warning' $(PACKED) | grep -v 'due to dry run' | grep -A 3 '^warning'
	@grep Packaged $(PACKED)

lint: ## clippy without warnings, where it exists
	@if ! $(CARGO) clippy --version >/dev/null 2>&1; then echo "skipped: there is no clippy"; \
	else $(CARGO) clippy --workspace --all-targets -- -D warnings; fi

doc: DOC = RUSTDOC=$(abspath tests/rustdoc.sh) RUSTDOCFLAGS="-D warnings" \
	$(CARGO) doc --workspace --no-deps --examples
doc: ## Build the documentation without warnings
	@# The command and the library have the same name: the pages of the commands go elsewhere. With
	@# the examples the features are those of `make lint`, whose dependencies are used again.
	rm -rf $(CARGO_TARGET_DIR)/doc $(CARGO_TARGET_DIR)/doc-command
	$(DOC) --bins
	mv $(CARGO_TARGET_DIR)/doc $(CARGO_TARGET_DIR)/doc-command
	$(DOC) --lib

# Of a debug build: it checks the order of locks, and every invariant after each test.
unit: unit-build ## The tests in Rust
	OVERSPILL_BIN=$(abspath $(CARGO_TARGET_DIR)/debug/overspill) $(PYTHON) tests/unit.py

# Of everything at once, the tests as well: their dependencies change the features of what the
# product depends on, so that a build without them would be one more of nearly everything.
unit-build: ## Build these
	$(CARGO) build --workspace --all-targets

proof: product ## Real programs in memory cgroups, at full size (as root; takes long)
	tests/proof/install.sh
	$(PYTHON) tests/proof/proof.py

proof-quick: product ## The same at a quarter of the size or less
	tests/proof/install.sh
	$(PYTHON) tests/proof/proof.py --quick

programs: product ## Everyday programs natively and under overspill (as root; under an hour)
	tests/programs/install.sh
	$(PYTHON) tests/programs/programs.py

# Of those that `programs.py --quick` knows, the ones that take a second or two in thread delivery.
QUICK = python-fork,python-threads,bash,java-g1,make,rustc,nginx,su,setpriv,unshare,bwrap,tmux,zstd

programs-quick: product ## The small ones of these, in two minutes
	tests/programs/install.sh --quick
	$(PYTHON) tests/programs/programs.py --quick --thread $(QUICK)

clean: ## Remove all that was built
	$(CARGO) clean
