"""How far a forward pass that real processes share out is from that of one process, for
`benchmarks.regroup`: float32, tiny models with random weights of four families.
"""

from __future__ import annotations

from benchmarks.report import Figure
from tests.diffusion.sequence_parallel_kit import Case, Crew, Outcome

DEGREES = (2, 4)
PATIENCE_S = 300.0
CASES = (
    *(Case(family) for family in ("qwen", "sd3", "flux", "wan")),
    *(Case(family, text=7, batch=3) for family in ("qwen", "sd3", "flux", "wan")),
    *(Case(family, rows=5, columns=3, text=5) for family in ("qwen", "sd3", "flux", "wan")),
    Case("qwen", rows=5, columns=3, text=7, text_mask=(7, 3)),
)
"""Even lengths, odd text lengths, odd images that are not square, and text of several lengths."""


def measure(*, quick: bool) -> dict[str, Figure]:
    """`sp_max_relative_difference` is relative to the largest value of the output;
    `sp_ranks_differ` counts the cases whose ranks do not agree to the bit. `quick` tries the first
    case only.
    """
    cases = CASES[:1] if quick else CASES
    largest: dict[str, float] = {}
    differ = 0
    crew = Crew(max(DEGREES), PATIENCE_S)
    try:
        crew.ask(range(max(DEGREES)), "prepare", cases=list(cases))
        for degree in DEGREES:
            ranks = crew.form(str(degree), degree)
            for case in cases:
                outcomes: list[Outcome] = crew.ask(ranks, "share", name=str(degree), case=case)
                key = f"sp_difference_{case.family}_degree_{degree}"
                differences = [outcome.difference for outcome in outcomes]
                largest[key] = max(largest.get(key, 0.0), *differences)
                differ += len({outcome.digest for outcome in outcomes}) > 1
    finally:
        crew.close()
    return {
        "sp_max_relative_difference": max(largest.values()),
        "sp_ranks_differ": differ,
        "sp_cases": len(cases) * len(DEGREES),
        **largest,
    }
