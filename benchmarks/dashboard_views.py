"""Made-up views of runs, for the page to show: of a few workers or a thousand, with pictures."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from PIL import Image, ImageDraw

from spotlight.record.ledger import TIME_STATES, TimeState
from spotlight.report.run_view import (
    CURVES,
    MOST_BUCKETS,
    MOST_LANES,
    MOST_ROWS,
    Areas,
    ExplorationPart,
    Happened,
    JobPart,
    LanePart,
    Mark,
    MoneyPart,
    NodePart,
    PicturesPart,
    PoolPart,
    RunView,
    Shown,
    ValidationPart,
    WhatIf,
)

PRICES = {"reserved": 6.88, "spot": 1.62}
ON_DEMAND = 6.88
PROMPTS = (
    "the number 6044 in white on black, as a street sign at night",
    'a shop window with the words "open late"',
    "the number 9399, hand painted on a wooden door",
    '<img src="x" onerror="alert(1)"> <b>a prompt with HTML in it</b>',
)
_LEVELS: dict[str, Literal["info", "warning", "error"]] = {"lost": "error", "notice": "warning"}
_SHARES: dict[str, dict[TimeState, float]] = {
    "reserved": {
        "train": 0.58,
        "rollout": 0.21,
        "evaluate": 0.05,
        "idle": 0.1,
        "loading": 0.04,
        "starting": 0.02,
    },
    "spot": {
        "rollout": 0.33,
        "explore": 0.29,
        "score": 0.13,
        "evaluate": 0.05,
        "idle": 0.1,
        "loading": 0.05,
        "starting": 0.02,
        "draining": 0.02,
        "lost": 0.01,
    },
}


@dataclass(frozen=True)
class Kind:
    """What kind of a run is made up."""

    name: str = "ocr-tiny"
    reserved: int = 8
    spot: int = 20
    per_node: int = 4
    done: int = 312
    iterations: int = 400
    iteration_s: float = 44.0
    versions: int = 9
    is_priced: bool = True
    outcome: str = "running"
    seed: int = 1

    @property
    def time_s(self) -> float:
        """The run time so far."""
        return self.done * self.iteration_s

    @property
    def usd_per_s(self) -> float:
        """What all of it costs in a second."""
        return (self.reserved * PRICES["reserved"] + self.spot * PRICES["spot"]) / 3600


SMALL = Kind(reserved=1, spot=2, per_node=1, done=24, iterations=24, iteration_s=5.5, versions=3)
LARGE = Kind(reserved=200, spot=800, per_node=8, done=10_000, iterations=10_000, iteration_s=30)


def made_up_view(kind: Kind) -> RunView:
    """A run of this kind, the same every time."""
    chance = random.Random(kind.seed)
    spent = kind.usd_per_s * kind.time_s if kind.is_priced else None
    marks = _marks(kind, chance)
    return RunView(
        job=JobPart(
            name=kind.name,
            id="j-0017",
            owner="team-a",
            outcome=kind.outcome,
            about="GRPO on a small DiT: read the digits that the prompt names, scored by OCR.",
            phase="rollouts 37 of 64",
            iteration=kind.done,
            iterations=kind.iterations,
            time_s=kind.time_s,
            started_at=1.79e9,
            updated_at=1.79e9 + kind.time_s,
            workers={"reserved": kind.reserved, "spot": kind.spot},
        ),
        validation=ValidationPart(
            first=0.309,
            latest=0.754,
            best=0.761,
            target=0.9,
            seconds_left=3400,
            usd_left=None if spent is None else 3400 * kind.usd_per_s,
        ),
        money=_money(kind, spent),
        pools={
            pool: PoolPart(
                workers=workers,
                seconds={state: share * workers * kind.time_s for state, share in shares.items()},
            )
            for (pool, shares), workers in zip(
                _SHARES.items(), (kind.reserved, kind.spot), strict=True
            )
        },
        exploration=ExplorationPart(
            verdict="paid",
            sentence="Exploration paid: the seeds it kept spread 1.20 times as wide as random ones"
            " (95 % between 1.08 and 1.33, 20 groups). It took 29 % of spot time. Wider contrast is"
            " not the same as faster learning.",
            times=1.2,
            low=1.08,
            high=1.33,
            groups=20,
        ),
        rows=_rows(kind, chance),
        marks=marks,
        areas=_areas(kind, chance),
        lanes=_lanes(kind, chance),
        pictures=_pictures(kind, chance),
        nodes=_nodes(kind),
        happened=(
            *(Happened(mark.time_s, _LEVELS.get(mark.kind, "info"), mark.text) for mark in marks),
            Happened(kind.time_s, "info", "validation 0.754 is the best but one"),
        ),
        alerts=("tracker wandb failed: no answer from api.wandb.ai; the run goes on without it",),
    )


def picture(version: int, seed: int, size: tuple[int, int] = (192, 128)) -> bytes:
    """A PNG: a number that gets out of the noise as the version rises."""
    chance = random.Random(1000 * seed + version)
    image = Image.new("RGB", (48, 32), (24, 26, 34))
    draw = ImageDraw.Draw(image)
    hue = (120 + seed * 37 % 130, 110 + seed * 53 % 140, 235 - seed * 29 % 150)
    draw.text((9, 10), f"{1000 + seed * 1234 % 9000}", fill=hue)
    for _ in range(max(0, 700 - 90 * version)):
        at = (chance.randrange(48), chance.randrange(32))
        image.putpixel(at, (chance.randrange(256), chance.randrange(256), chance.randrange(256)))
    written = io.BytesIO()
    image.resize(size, Image.Resampling.BICUBIC).save(written, "PNG")
    return written.getvalue()


def _money(kind: Kind, spent: float | None) -> MoneyPart:
    worker_s = (kind.reserved + kind.spot) * kind.time_s
    if spent is None:
        return MoneyPart(unpriced_s=worker_s)
    by_pool = {
        "reserved": kind.reserved * PRICES["reserved"] * kind.time_s / 3600,
        "spot": kind.spot * PRICES["spot"] * kind.time_s / 3600,
    }
    hours = max(1, math.ceil(kind.time_s / 3600))
    return MoneyPart(
        spent=spent,
        per_iteration=spent / kind.done,
        by_pool=by_pool,
        by_state={
            pool: {state: share * by_pool[pool] for state, share in shares.items()}
            for pool, shares in _SHARES.items()
        },
        by_node={node.name: node.usd or 0.0 for node in _nodes(kind)},
        by_hour=tuple((1.79e9 + 3600 * hour, spent / hours) for hour in range(hours)),
        otherwise=(
            WhatIf(
                name="on demand",
                usd=worker_s / 3600 * ON_DEMAND,
                assumption="The same GPUs for the same time at the price on demand.",
            ),
            WhatIf(
                name="reserved nodes only",
                usd=spent * 1.71,
                assumption="The same samples at the speed that the reserved nodes had here.",
            ),
            WhatIf(
                name="data-parallel on demand",
                usd=None,
                assumption="Not known: no iteration ran without spot nodes.",
            ),
        ),
        advice="One more spot node is worth it: it would save 41 min and cost $2.10 more.",
        sources=("the job", "snapshot of 2026-10-02, AWS us-east-1"),
        budget_usd=round(spent * 1.3),
    )


def _rows(kind: Kind, chance: random.Random) -> tuple[tuple[float | None, ...], ...]:
    count = min(kind.done, MOST_ROWS)
    rows: list[tuple[float | None, ...]] = []
    for place in range(1, count + 1):
        share, iteration = place / count, place * kind.done / count
        level = 0.31 + 0.46 / (1 + math.exp(-9 * (share - 0.55)))
        noise = chance.gauss(0, 1)
        values: dict[str, float | None] = {
            "iteration": round(iteration),
            "time_s": iteration * kind.iteration_s,
            "usd": iteration * kind.iteration_s * kind.usd_per_s if kind.is_priced else None,
            "reward": level + 0.02 * noise,
            "validation": level - 0.01 if place == 1 or place % max(1, count // 16) == 0 else None,
            "loss": 0.21 * math.exp(-2 * share) + 0.008 * chance.gauss(0, 1),
            "grad_norm": 0.6 + 0.3 * share + 0.06 * chance.gauss(0, 1),
            "learning_rate": 1e-4 * min(1.0, place / 20),
            "kl": 0.012 * share + 0.0006 * chance.gauss(0, 1),
            "contrast": 0.24 + 0.02 * chance.gauss(0, 1),
            "contrast_at_random": 0.2 + 0.02 * chance.gauss(0, 1) if place % 15 == 0 else None,
            "fidelity": 0.71 + 0.1 * share + 0.02 * chance.gauss(0, 1),
        }
        rows.append(tuple(values[name] for name in CURVES))
    return tuple(rows)


def _marks(kind: Kind, chance: random.Random) -> tuple[Mark, ...]:
    texts = (
        ("notice", "notice spot-2"),
        ("lost", "lost spot-2"),
        ("restart", "coordinator back"),
        ("notice", "notice spot-4"),
        ("lost", "lost spot-1"),
    )
    shares = sorted(chance.random() for _ in texts)
    return tuple(
        Mark(
            time_s=share * kind.time_s,
            usd=share * kind.time_s * kind.usd_per_s if kind.is_priced else None,
            iteration=share * kind.done,
            kind=mark,  # type: ignore[arg-type]
            text=text,
        )
        for share, (mark, text) in zip(shares, texts, strict=True)
    )


def _areas(kind: Kind, chance: random.Random) -> Areas:
    count = MOST_BUCKETS
    pools: dict[str, dict[TimeState, tuple[float, ...]]] = {}
    for (pool, shares), workers in zip(_SHARES.items(), (kind.reserved, kind.spot), strict=True):
        values: dict[TimeState, list[float]] = {state: [] for state in shares}
        for bucket in range(count):
            is_start = bucket < 4
            there = workers * (0.75 if pool == "spot" and 90 < bucket < 130 else 1.0)
            weights = {
                state: (share * chance.uniform(0.5, 1.5) if not is_start else 0.01)
                + (1.0 if is_start and state == "loading" else 0.0)
                for state, share in shares.items()
            }
            whole = sum(weights.values())
            for state, weight in weights.items():
                values[state].append(round(there * weight / whole, 3))
        pools[pool] = {state: tuple(series) for state, series in values.items()}
    edges = tuple(round(place * kind.time_s / count, 3) for place in range(count + 1))
    return Areas(edges=edges, pools=pools)


def _node_names(kind: Kind) -> list[tuple[str, str]]:
    return [
        (f"{short}-{place + 1}", pool)
        for pool, short, workers in (
            ("reserved", "resv", kind.reserved),
            ("spot", "spot", kind.spot),
        )
        for place in range(math.ceil(workers / kind.per_node))
    ]


def _lanes(kind: Kind, chance: random.Random) -> tuple[LanePart, ...]:
    names = _node_names(kind)
    if kind.reserved + kind.spot <= MOST_LANES:
        names = [
            (f"{node}/{worker}", pool) for node, pool in names for worker in range(kind.per_node)
        ]
    lanes: list[LanePart] = []
    for place, (name, pool) in enumerate(names):
        states = list(_SHARES[pool])
        weights = list(_SHARES[pool].values())
        parts: list[tuple[int, float, float]] = []
        time_s = 0.0
        while time_s < kind.time_s:
            end = min(kind.time_s, time_s + chance.uniform(0.2, 1.8) * kind.time_s / 90)
            (state,) = chance.choices(states, weights)
            is_away = pool == "spot" and place % 3 == 0 and 0.38 < time_s / kind.time_s < 0.53
            if not is_away:
                parts.append((TIME_STATES.index(state), round(time_s, 2), round(end, 2)))
            time_s = end
        lanes.append(LanePart(name=name, pool=pool, parts=tuple(parts)))
    return tuple(lanes)


def _nodes(kind: Kind) -> tuple[NodePart, ...]:
    says: Sequence[str] = (
        "rolls out",
        "notice: 24 s left",
        "rolls out",
        "back 15 s after it was lost",
    )
    return tuple(
        NodePart(
            name=name,
            pool=pool,
            workers=kind.per_node,
            says="trains" if pool == "reserved" else says[place % len(says)],
            usd_per_hour=kind.per_node * PRICES[pool] if kind.is_priced else None,
            usd=kind.per_node * PRICES[pool] * kind.time_s / 3600 if kind.is_priced else None,
            is_there=place % 7 != 6,
        )
        for place, (name, pool) in enumerate(_node_names(kind))
    )


def _pictures(kind: Kind, chance: random.Random) -> PicturesPart:
    def shown(version: int, seed: int, reward: float) -> Shown:
        path = f"{version}-{seed}.png"
        return Shown(
            weights_version=version,
            reward=round(reward, 2),
            thumb=f"thumbnails/{path}",
            full=f"pictures/{path}",
            prompt=PROMPTS[seed % len(PROMPTS)],
            seed=seed,
        )

    versions = [
        round(place * kind.done / max(1, kind.versions - 1)) for place in range(kind.versions)
    ]
    wall = tuple(
        tuple(
            shown(version, seed, 0.25 + 0.6 * place / kind.versions + 0.1 * chance.random())
            for place, version in enumerate(versions)
        )
        for seed in range(len(PROMPTS))
    )
    return PicturesPart(
        wall=wall,
        best=tuple(shown(kind.done, 10 + place, 1 - place * 0.02) for place in range(6)),
        worst=tuple(shown(kind.done, 20 + place, place * 0.03) for place in range(6)),
    )
