"""The table of memory that a plan prints."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from spotlight.cli.memory_plan import memory_table
from spotlight.jobs import job_from_data
from spotlight.preflight.checkpoint_facts import inspect_checkpoint
from spotlight_simulation.tiny_families import make_tiny_checkpoint


def test_images_that_prompts_come_with_take_host_memory_and_twice_as_much_on_their_way(
    tmp_path: Path,
) -> None:
    make_tiny_checkpoint("sd3", tmp_path / "sd3")
    job = job_from_data(
        {
            "name": "job",
            "model": {"checkpoint": str(tmp_path / "sd3")},
            "prompts": {"train": "train.txt", "validation": "validation.txt"},
            "sampler": {"height": 32, "width": 48},
        },
        base=tmp_path,
    )
    console = Console(width=200)

    def said(images: int) -> list[list[str]]:
        checkpoint = inspect_checkpoint(job.model)
        with console.capture() as captured:
            console.print(memory_table(job, checkpoint, "", None, images=images))
        lines = captured.get().splitlines()
        return [line.replace("│", " ").split()[-4:] for line in lines if "images" in line]

    assert said(0) == []
    assert said(3_000_000) == [["6.00", "MB"] * 2, ["3.00", "MB"] * 2]
