# kiln: the two commands of the README are `make sweep` and `make test`; both set up what they need.

EXPERIMENT ?= experiments/quickstart.yaml
ARGS ?=
target := $(or $(CARGO_TARGET_DIR),target)
kiln := $(target)/release/kiln
# If CXX is not set, make's built-in default is g++; c++ is used instead.
compiler := $(if $(filter default,$(origin CXX)),c++,$(CXX))

.PHONY: help sweep test test-all test-faults check check-model check-slurm check-gpu rehearse-gpu check-cuda-flavour check-cuda-calls check-kernels bench bench-pytorch libtorch pytorch browser build bundle install uninstall clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-18s %s\n", $$1, $$2 }'

sweep: ## run EXPERIMENT (experiments/quickstart.yaml), with ARGS for `kiln run`
	@scripts/announce.sh $(EXPERIMENT) $(kiln)
	@$(MAKE) --no-print-directory build
	@$(kiln) run $(EXPERIMENT) $(ARGS)

test: libtorch ## the tests in their short form, some minutes; without a GPU or a browser
	@scripts/test.sh short

test-all: libtorch browser ## the tests in their long form: more cases and kills, the report's page in a browser, real data ($$KILN_DATA)
	@scripts/test.sh long
	@scripts/test-faults.sh

test-faults: libtorch ## kiln under failing calls, kills, power cuts, full disks, hostile files; 5 minutes, hours with KILN_FAULTS=long
	@scripts/test-faults.sh

check: libtorch ## formatting, lints, tests
	cargo fmt --all -- --check
	cargo clippy --workspace --release --all-targets -- -D warnings
	@scripts/test.sh short

check-gpu: build ## checks that need a GPU, in parts; writes tables and logs as one archive (ARGS for scripts/check-gpu.sh)
	@scripts/check-gpu.sh --kiln $(kiln) $(ARGS)

check-model: ## every state of the protocol of tickets, and the folder that lies to its tests; 40 s, Python alone
	@python3 tests/model/tickets.py
	@python3 tests/lying_folder/check.py

check-slurm: build ## workers on a real Slurm of this host under faults, 20 minutes; installs it on Debian as root, skipped without it (ARGS for scripts/check-slurm.sh)
	@scripts/check-slurm.sh $(ARGS)

rehearse-gpu: build ## every part of check-gpu on the CPU with tiny sizes, to find errors in the checks
	@scripts/check-gpu.sh --rehearse --kiln $(kiln) $(ARGS)

check-cuda-flavour: build ## checks of the CUDA flavor of libtorch without a GPU; downloads it (2.5 GB, 4.7 GB on disk), writes a table under target/
	@scripts/check-cuda-flavour.sh $(target)/release/kiln-trial $(target)/cuda-flavour.csv

check-kernels: build ## kiln's CUDA kernels compile for every generation of GPUs, without a GPU; downloads NVRTC (90 MB)
	@scripts/check-kernels.sh $(target)/release/kiln-trial

check-cuda-calls: build ## what kiln has CUDA do, without a GPU, on a CUDA that does nothing; downloads CUDA's libtorch (4.7 GB on disk), writes a table under target/
	@scripts/check-cuda-calls.sh $(kiln) $(target)/cuda-calls.csv

bench: build ## overhead of runner and sampler, error rates of verdicts, findings and searches, and `make bench-pytorch`; writes CSVs under target/
	cargo bench -p kiln --bench runner_cost --bench tick_cost --bench verdicts --bench blocks --bench findings --bench searches --bench large_runs --bench queue
	@benches/against-pytorch.sh

bench-pytorch: libtorch ## each model's step in kiln, in PyTorch and through torch.compile (a Python with torch: PYTHON=…, DEVICE=cuda)
	@benches/against-pytorch.sh

libtorch: ## find or download libtorch (KILN_LIBTORCH=cpu|cuda selects the flavor)
	@command -v cargo >/dev/null || { echo "make: no cargo found; install Rust (see rust-version in Cargo.toml)" >&2; exit 3; }
	@command -v $(compiler) >/dev/null || { echo "make: no C++ compiler \`$(compiler)\` found; install g++ or clang, or name one in CXX" >&2; exit 3; }
	@scripts/libtorch.sh

pytorch: ## a Python with PyTorch in .venv, for experiments/gpt-engines.yaml (5 GB)
	@scripts/pytorch.sh

browser: ## find or install a Chromium for the tests of the report's page (KILN_BROWSER=none skips them)
	@scripts/browser.sh

build: libtorch
	@scripts/build.sh

bundle: ## a folder and an archive for a GPU host that has the same torch: programs, tests, experiments, GPU check, small data
	@scripts/bundle.sh

install: build ## programs, libtorch, completions and manual pages into PREFIX (default ~/.local); `make uninstall` removes them
	@scripts/install.sh $(target)/release

uninstall: ## remove what `make install` put into PREFIX
	@scripts/install.sh --remove

clean: ## remove build products and the downloaded libtorch; results are kept
	rm -rf target bundle bundle.tar.xz .libtorch .browser
