"""The process of `spotlight try-reward`: scores image files and says what came of it. It loads
torch only if a scorer does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from spotlight.assets import read_prompt_lines
from spotlight.errors import JobError, UserError
from spotlight.process_start import standard_streams
from spotlight.rewards.trial.pairing import paired, require_groups, with_images
from spotlight.rewards.trial.settings import TrialSettings
from spotlight.rewards.trial.trying import Picture, Tried, image_names, read_pictures, try_scorer

_CANCELLED = 130


def try_rewards(settings: TrialSettings) -> bool:
    """Print what comes of each scorer; returns whether none failed. Raises `UserError`."""
    folder = Path(settings.images)
    try:
        lines = read_prompt_lines(settings.prompts)
        lines = with_images(lines) if settings.changes_images else lines
    except JobError as error:
        raise UserError(f"--prompts: {error.problem}") from error
    of = paired(image_names(folder), lines, settings.each)
    for reward in settings.rewards.values():
        require_groups(reward, of)
    groups = read_pictures(folder, of)
    tried = [
        try_scorer(field, reward, groups, settings.permissions)
        for field, reward in settings.rewards.items()
    ]
    if settings.as_json:
        sys.stdout.write(f"{msgspec.json.encode(tried).decode()}\n")
    else:
        _show(tried, [picture for group in groups for picture in group])
    return not any(one.error for one in tried)


def _show(tried: Sequence[Tried], pictures: Sequence[Picture]) -> None:
    console = Console()
    scored = [one for one in tried if not one.error]
    if scored:
        console.print(_scores(scored, pictures), "", _costs(scored, len(pictures)), sep="\n")
    for one in tried:
        if one.error:
            said = f"\n{one.traceback}" if one.traceback else ""
            console.print(Text(f"{one.error}{said}"), soft_wrap=True)


def _scores(scored: Sequence[Tried], pictures: Sequence[Picture]) -> RenderableType:
    table = _table("image", "prompt", *(one.name for one in scored))
    for row, picture in enumerate(pictures):
        rewards = (f"{one.rewards[row]:.4f}" for one in scored)
        table.add_row(Text(picture.name), Text(picture.prompt.text), *rewards)
    return table


def _costs(scored: Sequence[Tried], images: int) -> RenderableType:
    table = _table("reward", *_COSTS)
    for one in scored:
        table.add_row(Text(one.name), *_cost(one, images))
    return table


_COSTS = ("mean", "least", "greatest", "made in", "each image", "host memory", "accelerator")


def _cost(one: Tried, images: int) -> Iterator[str]:
    yield from (f"{value:.4f}" for value in (mean(one.rewards), min(one.rewards), max(one.rewards)))
    yield f"{one.building_s:.2f} s"
    yield f"{1000 * one.scoring_s / images:.1f} ms"
    yield f"+{one.host_mb:.0f} MB"
    yield f"{one.accelerator_mb:.0f} MB" if one.accelerator_mb else ""


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for column in columns:
        is_text = column == "prompt"
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    return table


def main() -> None:
    """Run as a process."""
    with standard_streams("spotlight"):
        try:
            succeeded = try_rewards(msgspec.json.decode(sys.argv[1], type=TrialSettings))
        except UserError as error:
            sys.stderr.write(f"spotlight: {' '.join(str(error).split())}\n")
            sys.exit(error.exit_code)
        except KeyboardInterrupt:  # where a slow scorer is now, nobody asked
            sys.exit(_CANCELLED)
        sys.exit(0 if succeeded else 1)


if __name__ == "__main__":
    main()
