"""Install what the demo and the tests need into `.venv`: what `make setup` runs.

    python3 tools/setup_venv.py .venv 'torch==2.13.0'

Says beforehand what is downloaded and how large it is. Where this machine has no GPU, torch's CPU
build is taken if one of pip's indexes offers it. Any Python from 3.11 on can run this.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

OLDEST, NEWEST_TESTED = (3, 11), (3, 13)
CUDA_SIZE, CPU_SIZE, REST_SIZE = "about 2.7 GB", "about 0.2 GB", "about 0.3 GB"


def main() -> None:
    """Entry point: the folder, and what to install as torch."""
    folder, torch = Path(sys.argv[1]), sys.argv[2]
    problem, advice = judged(sys.version_info[:2])
    if problem:
        sys.exit(problem)
    say(advice)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "--disable-pip-version-check"]

    def is_offered(requirement: str) -> bool:
        trial = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", requirement]
        return subprocess.run([*pip, *trial], capture_output=True, check=False).returncode == 0

    requirement, said = chosen(torch, has_gpu=has_gpu(Path("/dev")), is_offered=is_offered)
    install = [*pip, "install", "--constraint", "constraints.txt"]
    say(said)
    subprocess.run([*install, *requirement.split()], check=True)
    say(f"Everything else: {REST_SIZE}.")
    subprocess.run([*install, "--editable", ".[dev]"], check=True)


def say(lines: str) -> None:
    """Print these, if there are any, before what pip prints."""
    if lines:
        sys.stdout.write(f"{lines}\n")
        sys.stdout.flush()


def judged(version: tuple[int, ...]) -> tuple[str, str]:
    """Why this Python cannot be used (empty if it can), and what else to say about it."""
    text = ".".join(map(str, version))
    if version < OLDEST:
        return f"Python {text} is too old: make PYTHON=... with Python 3.11, 3.12 or 3.13", ""
    if version > NEWEST_TESTED:
        return "", f"Python {text} is newer than what was tested (3.11 to 3.13)."
    return "", ""


def has_gpu(devices: Path) -> bool:
    """Whether this machine has an NVIDIA GPU, as the driver shows it among its devices."""
    return any(devices.glob("nvidia[0-9]*"))


def chosen(torch: str, *, has_gpu: bool, is_offered: Callable[[str], bool]) -> tuple[str, str]:
    """What pip is told to install as torch, and what to say about it."""
    name, _, options = torch.partition(" ")
    if options or "+" in name:
        return torch, f"Torch, as you said: {torch}"
    if has_gpu:
        return torch, f"{torch} for this machine's GPU: {CUDA_SIZE} with the CUDA libraries."
    if is_offered(f"{torch}+cpu"):
        return f"{torch}+cpu", f"{torch}, its CPU build, as there is no GPU here: {CPU_SIZE}."
    return torch, (
        f"{torch}: {CUDA_SIZE} where it is the CUDA build. There is no GPU here; the CPU build has"
        f" {CPU_SIZE}, but pip's indexes do not offer it:\n"
        f"  make setup TORCH='{torch} --extra-index-url URL'\n"
        "takes it, with the URL that PyTorch's install selector shows for CPUs."
    )


if __name__ == "__main__":
    main()
