"""The pictures that a view points to: those of validations, and the best and worst samples."""

from __future__ import annotations

from pathlib import Path

from spotlight.report.run_view import PicturesPart


class ViewPictures:
    """Looks for pictures in a run folder, again when something changed there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.notes: tuple[str, ...] = ()

    def part(self) -> PicturesPart:
        """Those that are there."""
        return PicturesPart()
