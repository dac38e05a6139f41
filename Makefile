# Two commands: `make demo` and `make test`. Both set everything up in .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin
# What pip is told to install as torch: the version of constraints.txt, and perhaps where to find it.
# Without more words, tools/setup_venv.py takes the CPU build where there is no GPU and one is offered.
TORCH ?= torch==2.13.0

.PHONY: setup demo test test-slow test-sweep lint check clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) tools/setup_venv.py .venv '$(TORCH)'
	@touch $@

demo: setup
	$(BIN)/spotlight run examples/ocr-tiny.yaml

test: setup
	@echo "The tests take about four minutes on two idle cores."
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist loadfile

test-slow: setup
	@echo "The slow tests take about fifteen minutes on two idle cores."
	$(BIN)/python -m pytest -m slow --numprocesses 2 --dist worksteal

# Every moment of the sweeps, of which `make test` tries twelve, others every day.
test-sweep: setup
	$(BIN)/python -m pytest -m sweep --numprocesses 2 --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: test test-slow test-sweep lint

clean:
	rm -rf .venv build *.egg-info
