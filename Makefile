# `make run` and `make test` do all the set-up; both are quick the second time.
.DELETE_ON_ERROR:
.PHONY: help venv run test test-python test-native test-exhaustive test-sanitizers fuzz test-verbs test-slurm test-upstream test-tensorflow test-aarch64 wheel test-wheel bench-verbs paper docs lint format bench clean
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMPS := build/stamps
SOURCES := $(shell find native rdma_transport -type f -not -name '*.pyc' 2>/dev/null)
CXX_FILES := $(shell find native tests/native tests/fuzz -name '*.h' -o -name '*.cc' 2>/dev/null)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Where it is set, each process that imports TensorFlow compiles it, which takes most of its time.
export PYTHONDONTWRITEBYTECODE :=

help:
	@echo "make run    train on handwritten digits over gRPC and over rdma, and on two ranks, and compare"
	@echo "make test   run linters, C++ tests and Python tests"
	@echo "make test-exhaustive   run what that leaves out: tests over all fabrics, and in all examples"
	@echo "make test-sanitizers   run the C++ tests under ASan+UBSan and under TSan; fuzz briefly"
	@echo "make fuzz   run each fuzz target for SECONDS=60"
	@echo "make test-verbs   test on libibverbs, in virtual machines with Soft-RoCE"
	@echo "make test-slurm   test as jobs of Slurm, on nodes that are network namespaces; needs root"
	@echo "make test-tensorflow   build for another TensorFlow, and test; TENSORFLOW=2.18 names it"
	@echo "make test-aarch64   run the core's C++ tests for aarch64 with qemu-user, and compile the plugin"
	@echo "make test-upstream   run TensorFlow's own distributed tests; TENSORFLOW_TESTS names them"
	@echo "make bench  measure the time per edge, rdma beside gRPC"
	@echo "make bench-verbs  compare verbs with perftest and gRPC, in virtual machines with Soft-RoCE"
	@echo "make paper  run the paper's evaluation, and write docs/benchmarks.md (about 20 minutes)"
	@echo "make docs   build the documentation site into build/site"
	@echo "make lint   run the linters;  make format   format the code"
	@echo "make wheel  build dist/*.whl for this TensorFlow, RHEL 9, Ubuntu 22.04 and later"
	@echo "make test-wheel  test that wheel with the lowest requirements and other Pythons; OTHER_PYTHON=3.13 names one"
	@echo "make venv   set up only;      make clean    remove build/ and .venv"

$(STAMPS)/system: tools/system_packages.sh
	@mkdir -p $(@D)
	@tools/system_packages.sh
	@touch $@

# pip would compile all modules of all packages, most of which nobody uses.
PIP_INSTALL = $(PYTHON) -m pip install -q --disable-pip-version-check
INSTALL = $(PYTHON) tools/requirements.py $(1) > build/requirements_$(@F).txt && \
    $(PIP_INSTALL) --no-compile -r build/requirements_$(@F).txt

# What it takes to build the package and to run training scripts, and nothing else: `make run` waits
# for it. The import compiles what is used, before several tests do so at the same time.
$(STAMPS)/packages: $(STAMPS)/system pyproject.toml
	@test -x $(PYTHON) || "$$(tools/find_python.sh)" -m venv $(VENV)
	@echo "installing Python packages"
	@$(call INSTALL,package examples)
	@$(PYTHON) -c "import tensorflow, tf_keras" >build/import.log 2>&1 || { cat build/import.log; false; }
	@touch $@

$(STAMPS)/tools: $(STAMPS)/packages
	@echo "installing what tests and linters need"
	@tools/system_packages.sh iproute2 libclang-rt-16-dev libgtest-dev ucx-utils
	@$(call INSTALL,test lint wheel plots)
	@touch $@

# clang takes less time than gcc, and a fifth less again with huge pages.
COMPILE := GLIBC_TUNABLES=glibc.malloc.hugetlb=1
COMPILE_PACKAGE := $(COMPILE) CC=clang-16 CXX=clang++-16

$(STAMPS)/package: $(STAMPS)/packages CMakeLists.txt $(SOURCES)
	@echo "building rdma_transport"
	@$(COMPILE_PACKAGE) $(PIP_INSTALL) --no-build-isolation --no-deps --force-reinstall --editable .
	@touch $@

# Only `make docs` needs these.
$(STAMPS)/docs: $(STAMPS)/packages tools/docs/scripts.sh
	@echo "installing Python packages for the documentation site"
	@$(call INSTALL,docs)
	@command -v npm >/dev/null || tools/system_packages.sh npm
	@tools/docs/scripts.sh build/scripts
	@touch $@

venv: $(STAMPS)/package

run: venv
	@$(PYTHON) -m examples.digits
	@$(PYTHON) -m examples.unchanged

bench: venv
	@$(PYTHON) -m bench.edges

bench-verbs: venv $(STAMPS)/tools
	@$(PYTHON) -m bench.verbs

paper: venv $(STAMPS)/tools
	@$(PYTHON) -m bench.paper

lint: $(STAMPS)/tools
	@ruff check .
	@ruff format --check .
	@mypy
	@clang-format --dry-run --Werror $(CXX_FILES)
	@$(PYTHON) tools/check_words.py
	@$(PYTHON) tools/check_layers.py

format: $(STAMPS)/tools
	@ruff check --fix -q . || true
	@ruff format -q .
	@clang-format -i $(CXX_FILES)

# The variable turns off a notice about the theme's successor.
docs: $(STAMPS)/docs
	@NO_MKDOCS_2_WARNING=1 mkdocs build --strict

BUILD_PRESET = { cmake --preset $$preset && \
      $(COMPILE) cmake --build --preset $$preset $${target:+--target $$target}; } \
    >build/$$preset.log || { cat build/$$preset.log; false; }

test-native: $(STAMPS)/tools
	@preset=debug target=main_tests; $(BUILD_PRESET)
	@ctest --preset debug -LE exhaustive

# The corpora are replayed by the C++ tests, too, by the programs that gcc makes.
test-sanitizers: $(STAMPS)/tools
	@for preset in asan tsan; do \
	  echo "C++ tests: $$preset"; \
	  $(BUILD_PRESET) || exit 1; \
	  ctest --preset $$preset -LE repeats || exit 1; \
	done
	@preset=fuzz; $(BUILD_PRESET)
	@tools/fuzz.sh 2

SECONDS ?= 60
fuzz: $(STAMPS)/tools
	@preset=fuzz; $(BUILD_PRESET)
	@tools/fuzz.sh $(SECONDS)

# A test that ends its process would be given to each one that replaces it.
PYTEST = $(PYTHON) -m pytest tests --ignore=tests/verbs --ignore=tests/slurm -n 3 --dist loadgroup \
    --max-worker-restart 3

test-python: venv $(STAMPS)/tools
	@$(PYTEST) -m "not exhaustive"

# What `make test` leaves out.
test-exhaustive: venv $(STAMPS)/tools docs
	@preset=debug; $(BUILD_PRESET)
	@ctest --preset debug -L exhaustive
	@$(PYTEST) -m exhaustive

# In one process, which measures how patient the tests must be.
test-verbs: venv $(STAMPS)/tools
	@preset=debug; $(BUILD_PRESET)
	@$(PYTHON) -m pytest -rs -n 1 tests/verbs

test-slurm: venv $(STAMPS)/tools
	@tools/system_packages.sh munge slurm-client slurmctld slurmd
	@$(PYTHON) -m pytest -rs tests/slurm

# The oldest that is supported; see docs/porting.md.
TENSORFLOW ?= 2.18
test-tensorflow: $(STAMPS)/tools
	@tools/test_tensorflow.sh $(TENSORFLOW)

test-aarch64: $(STAMPS)/tools
	@tools/test_aarch64.sh

test-upstream: venv $(STAMPS)/tools
	@$(PYTHON) -m tests.upstream

# auditwheel refuses a wheel that needs newer libraries than the platform it names.
wheel: venv $(STAMPS)/tools
	@rm -rf build/wheel
	@$(COMPILE_PACKAGE) $(PYTHON) -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w build/wheel .
	@auditwheel repair --plat manylinux_2_34_$(shell uname -m) --exclude 'libtensorflow_*' -w dist build/wheel/*.whl 2>build/wheel.log || { cat build/wheel.log; false; }
	@ls dist/*.whl

# After `make wheel`. Those besides 3.11 that TensorFlow has wheels for.
OTHER_PYTHON ?= 3.12 3.13
test-wheel: $(STAMPS)/tools
	@tools/test_wheel.sh $(OTHER_PYTHON)

test: venv lint test-native test-python

clean:
	rm -rf build $(VENV)
