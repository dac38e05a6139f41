"""The tables of figures in the docs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.exploration.tables import UnknownTable, rendered

DOCS = Path(__file__).parents[3] / "docs"
FIGURES = {"order_noise[ocr, rollouts]": 1.052, "order_noise[ocr, spotlight]": None}
PAGE = """Before.

<!-- table: noise ocr -->

| old |

<!-- end of table -->

After.
"""


def test_a_marked_table_is_made_anew_and_all_else_stays() -> None:
    assert rendered(PAGE, FIGURES) == PAGE.replace(
        "| old |",
        "| run | ocr |\n"
        "| --- | --- |\n"
        "| reserved and spot rollouts | 1.05 |\n"
        "| Spotlight | not measured |",
    )


def test_a_page_that_is_made_twice_stays_as_it_is() -> None:
    once = rendered(PAGE, FIGURES)
    assert rendered(once, FIGURES) == once


def test_a_table_that_there_is_not_is_named() -> None:
    with pytest.raises(UnknownTable, match=r"'hopes'.*speedups"):
        rendered(PAGE.replace("noise", "hopes"), FIGURES)


def test_a_table_of_figures_that_there_are_not_says_which() -> None:
    with pytest.raises(UnknownTable, match=r"'noise compositional'.*order_noise\[compositional"):
        rendered(PAGE.replace("noise ocr", "noise compositional"), FIGURES)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tables_in_the_docs_are_those_of_the_runs_that_are_kept(tmp_path: Path) -> None:
    pages = [DOCS / "results.md", DOCS / "benchmarks.md"]
    copies = [tmp_path / page.name for page in pages]
    command = [sys.executable, "-m", "benchmarks.exploration", "--minutes", "1e-9"]
    command += [
        word for part in ("testbed", "ladder", "noise", "pools") for word in ("--part", part)
    ]
    for page, copy in zip(pages, copies, strict=True):
        copy.write_text(page.read_text())
        command += ["--tables", str(copy)]
    subprocess.run(command, check=True, cwd=DOCS.parent, stdout=subprocess.DEVNULL, timeout=240)
    for page, copy in zip(pages, copies, strict=True):
        assert copy.read_text() == page.read_text(), f"{page.name}: make its tables anew"
