"""Installing Spotlight, and the first commands that a newcomer types."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from benchmarks.users.case import ROOT, Ended, case, require

_LIMIT_S = 240.0
_PYTHONS = ("3.11", "3.12", "3.13")
_TORCH = "torch==2.13.0"


def _ended(words: list[str], folder: Path, **environment: str) -> Ended:
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LIMIT_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(errors="replace"))


@case("`--version` of every command, and `python -m spotlight`", quick=True)
def _versions(folder: Path) -> None:
    daemons = [[str(ROOT / "bin" / f"spotlight-{name}")] for name in ("coordinator", "node")]
    for words in (["-m", "spotlight"], ["-m", "spotlight.cli"], *daemons):
        _ended([sys.executable, *words, "--version"], folder).says(0, "spotlight ")


@case("bash completes commands and options")
def _completion(folder: Path) -> None:
    call = "from spotlight.cli.app import main\nmain()"
    (folder / "spotlight").write_text(f"#!{sys.executable}\n{call}\n")
    (folder / "spotlight").chmod(0o755)
    ask = (
        'eval "$(spotlight --show-completion bash)";'
        ' asked() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _spotlight_completion spotlight;'
        ' echo "${COMPREPLY[@]}"; }; asked spotlight st; asked spotlight run --res'
    )
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # not the shell that runs this
    _ended(["bash", "-c", ask], folder, PATH=path, **named).says(0, "status", "--resume")


@case("everything that development needs can be installed on Python 3.11 to 3.13")
def _pythons(folder: Path) -> None:
    refused = [
        f"{name} {wanted}"
        for name, wanted in sorted(_python_ranges())
        for python in _PYTHONS
        if not SpecifierSet(wanted).contains(f"{python}.9")
    ]
    require(not refused, f"cannot be installed: {refused}")


def _python_ranges() -> Iterator[tuple[str, str]]:
    """Which Pythons every package that `.[dev]` installs wants."""
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement("spotlight-rl[dev]")]
    while waiting:
        wanted = waiting.pop()
        for extra in ("", *wanted.extras):
            if (wanted.name, extra) in seen:
                continue
            seen.add((wanted.name, extra))
            try:
                found = distribution(wanted.name)
            except PackageNotFoundError:
                continue  # for another platform
            if wanted.name != "spotlight-rl":
                yield wanted.name, found.metadata["Requires-Python"] or ""
            # Ours as it stands in this tree, whatever was installed from.
            needs = found.requires or [] if wanted.name != "spotlight-rl" else _own_needs()
            for need in map(Requirement, needs):
                if need.marker is None or need.marker.evaluate({"extra": extra}):
                    waiting.append(need)  # noqa: PERF401 - it is walked, too


def _own_needs() -> list[str]:
    project = _project()
    extras = project["optional-dependencies"]
    marked = [f'{need} ; extra == "{extra}"' for extra, needs in extras.items() for need in needs]
    return [*project["dependencies"], *(need for need in marked if need.count(";") == 1)]


def _project() -> dict[str, dict[str, list[str]]]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project: dict[str, dict[str, list[str]]] = tomllib.load(file)["project"]
    return project


@case("install lines in pages and messages work from a clone", quick=True)
def _install_lines(folder: Path) -> None:
    extras = set(_project()["optional-dependencies"])
    places = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("spotlight/**/*.py")]
    for place in places:
        if place.name == "CHANGELOG.md":
            continue
        text = place.read_text(encoding="utf-8")
        require("pip install spotlight-rl" not in text, f"{place}: is on no index")
        require('pip install "spotlight-rl' not in text, f"{place}: is on no index")
        for named in re.findall(r"pip install (?:-e )?[\"']\.\[([a-z,]+)\]", text):
            require(set(named.split(",")) <= extras, f"{place}: no such extra: {named}")


@case("a missing package is named with a line that works from a clone")
def _missing_package(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'rapidocr' else found(name)\n"
    )
    job = str(ROOT / "examples" / "ocr-tiny.yaml")
    path = f"{folder}{os.pathsep}{ROOT}"
    ended = _ended([sys.executable, "-m", "spotlight", "plan", job], folder, PYTHONPATH=path)
    ended.says(2, "rapidocr", 'pip install ".[rewards]" in a clone')


def _setup_says(folder: Path, *builds: str) -> Ended:
    """What setup prints where pip has only these builds of torch, until the rest is missing."""
    for build in builds:
        _write_wheel(folder, build)
    words = [sys.executable, str(ROOT / "tools" / "setup_venv.py"), str(folder / "venv"), _TORCH]
    quiet = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}
    return _ended(words, ROOT, **quiet)


def _write_wheel(folder: Path, version: str) -> None:
    """An empty package of that name, as the wheel specification wants it."""
    info = f"torch-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},{_digest(text)},{len(text)}\n" for name, text in files.items())
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            wheel.writestr(name, text)


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


@case("setup where an index offers torch's CPU build")
def _cpu_build(folder: Path) -> None:
    said = _setup_says(folder, "2.13.0", "2.13.0+cpu").text
    if not _has_gpu():
        require("its CPU build, as there is no GPU here: about 0.2 GB" in said, said)
        require("Successfully installed torch-2.13.0+cpu" in said, said)
    require("Everything else: about" in said, said)


@case("setup where no index offers torch's CPU build")
def _no_cpu_build(folder: Path) -> None:
    said = _setup_says(folder, "2.13.0").text
    require("about 2.7 GB" in said, said)
    require(_has_gpu() or f"make setup TORCH='{_TORCH} --extra-index-url URL'" in said, said)
    require("Successfully installed torch-2.13.0\n" in said, said)


@case("`make test` says how long it takes", quick=True)
def _duration(folder: Path) -> None:
    _ended(["make", "--dry-run", "test"], ROOT).says(0, "minutes")


@case("the first screen of the README", quick=True)
def _first_screen(folder: Path) -> None:
    screen = (ROOT / "README.md").read_text(encoding="utf-8").split("```")[0]
    ratios = re.findall(r"\d\.\d times", screen)
    require(len(ratios) == 1, f"{len(ratios)} ratios instead of one: {screen}")
    for word in ("Slurm", "Kubernetes", "preempt", "simulated"):
        require(word in screen, f"does not say {word}: {screen}")
    require(len(screen.splitlines()) <= 24, f"{len(screen.splitlines())} lines")
