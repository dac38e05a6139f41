"""Losses of the user's own: what the documentation shows works, and what is wrong is one line."""

from __future__ import annotations

import re
import sys
import textwrap
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from spotlight.errors import JobError, LossFailed
from spotlight.jobs import TrainingSpec
from spotlight.training.trainer import Trainer
from tests.training.fakes import NFT, NOISY, SAMPLER, FakeModel, make_batch

PAGE = Path(__file__).resolve().parents[3] / "docs" / "losses.md"
WITH_OPTIONS = re.findall(
    r"```python\n(# my_options\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL
)
DOCUMENTED = re.findall(r"```python\n(# my_losses\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write modules that can be imported, and forget them afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        written.append(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)


@pytest.fixture
def documented(modules) -> None:
    """The modules that the documentation shows."""
    for name, (text,) in {"my_losses": DOCUMENTED, "my_options": WITH_OPTIONS}.items():
        modules(name, text)


def variant(modules, name: str, **methods: str) -> str:
    """A module with the documented loss and other members; returns the loss's name in a job."""
    (text,) = DOCUMENTED
    changed = "".join(textwrap.indent(code, "    ") + "\n" for code in methods.values())
    modules(name, f"{text}\n\nclass Changed(RewardWeighted):\n{changed}")
    return f"{name}:Changed"


def build(loss: str, sampler=SAMPLER, **options: Any) -> Trainer:
    training = msgspec.structs.replace(NFT, loss=loss, options={"times": 2, **options})
    return Trainer(FakeModel(), training, sampler, seed=0)


@pytest.mark.usefixtures("documented")
def test_the_documented_loss_has_15_lines_and_trains() -> None:
    (text,) = DOCUMENTED
    lines = text[text.index("class ") :].strip().splitlines()
    assert len([line for line in lines if line.strip()]) <= 15
    trainer = build("my_losses:RewardWeighted")
    before = torch.cat([tensor.flatten() for tensor in trainer.rollout_state().values()])
    report = trainer.train(0, make_batch(FakeModel()))
    after = torch.cat([tensor.flatten() for tensor in trainer.rollout_state().values()])
    assert report.keys() == {"loss", "grad_norm", "learning_rate", "error", "first_error"}
    assert not torch.equal(before, after)


@pytest.mark.usefixtures("documented")
def test_an_own_loss_that_restates_one_in_the_box_makes_the_same_update(modules) -> None:
    modules(
        "restated",
        "from spotlight.training.losses.diffusion_nft import DiffusionNFT\n"
        "class Mine(DiffusionNFT):\n"
        "    pass\n",
    )
    reports = [
        build(loss).train(0, make_batch(FakeModel())) for loss in ("diffusion_nft", "restated:Mine")
    ]
    assert reports[0] == reports[1]


@pytest.mark.usefixtures("documented")
def test_an_option_of_the_documented_loss_changes_the_update() -> None:
    def train(**options: float) -> float:
        return build("my_options:Tempered", **options).train(0, make_batch(FakeModel()))["loss"]

    plain = build("my_losses:RewardWeighted").train(0, make_batch(FakeModel()))["loss"]
    assert train() == train(temperature=1.0) == plain
    assert train(temperature=0.5) != plain


@pytest.mark.parametrize(
    ("loss", "options", "refusal"),
    [
        (
            "my_options:Tempered",
            {"temprature": 2.0},
            "training.options.temprature: `my_options:Tempered` has no option `temprature`; did you"
            " mean `temperature`?",
        ),
        (
            "my_options:Tempered",
            {"temperature": 0},
            "training.options.temperature: must be above 0, not 0",
        ),
        (
            "my_losses:RewardWeighted",
            {"strength": 1.0},
            "training.options.strength: `my_losses:RewardWeighted` has no option `strength`; known"
            " here: noisiest, shared_noise, times",
        ),
        (
            "replayed:Loss",
            {"times": 4},
            "training.options.times: `replayed:Loss` has no option `times`; known here: none",
        ),
        (
            "other:Loss",
            {},
            "training.loss: `other:Loss`: `Options` must be a class derived from `LossOptions`, not"
            " <class 'dict'>",
        ),
        (
            "unknown:Loss",
            {},
            "training.loss: `unknown:Loss`: its `Options` cannot be read: NameError: name 'Nothing'"
            " is not defined",
        ),
    ],
)
@pytest.mark.usefixtures("documented")
def test_an_option_that_a_loss_cannot_have_is_one_line(
    modules, loss: str, options: dict[str, Any], refusal: str
) -> None:
    head = "from my_options import *\nfrom my_losses import RewardWeighted\n"
    modules("replayed", f"{head}class Loss(RewardWeighted): samplers = ('flow_sde',)")
    modules("other", f"{head}class Loss(RewardWeighted): Options = dict")
    modules(
        "unknown",
        f"{head}class Later(NoisedOptions):\n    gone: 'Nothing' = 1\n"
        "class Loss(RewardWeighted): Options = Later",
    )
    with pytest.raises(JobError) as refused:
        build(loss, **options)
    assert str(refused.value) == refusal


@pytest.mark.usefixtures("documented")
def test_an_entry_point_gives_a_loss_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("weighted", "my_losses:RewardWeighted", "spotlight.losses")

    def installed(**wanted: str) -> EntryPoints:
        return EntryPoints([entry]).select(**wanted)

    monkeypatch.setattr("spotlight.jobs.losses.entry_points", installed)
    assert TrainingSpec(loss="weighted").loss == "weighted"
    assert "error" in build("weighted").train(0, make_batch(FakeModel()))
    with pytest.raises(ValueError, match="`weighted` or `module:Class`, not `wieghted`"):
        TrainingSpec(loss="wieghted")


@pytest.mark.usefixtures("documented")
def test_an_own_loss_that_does_not_fit_the_sampler_is_one_line() -> None:
    with pytest.raises(JobError) as refused:
        build("my_losses:RewardWeighted", NOISY)
    assert str(refused.value) == (
        "sampler.kind: my_losses:RewardWeighted cannot train on samples of `flow_sde`, only on"
        " those of `ode`"
    )


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("no_such_module:Loss", "cannot be imported where the trainer runs: ModuleNotFoundError"),
        ("my_losses:Misspelt", "my_losses has no class `Misspelt`"),
        ("broken:Loss", "SyntaxError"),
        ("leaves:Loss", "cannot be imported where the trainer runs: SystemExit: 3"),
        ("raises:Loss", "cannot be made: KeyError: 'option'"),
        ("bare:Loss", "has no `samplers`"),
        ("taken:Loss", "has a metric `samples`, which every run has"),
        ("escapes:Loss", r"has a metric called '\x1b[2J'; use 1 to 100 printable characters"),
        ("word:Loss", "`samplers` must be a tuple of names, not ode"),
    ],
)
@pytest.mark.usefixtures("documented")
def test_a_loss_that_cannot_be_loaded_is_one_line(modules, loss: str, words: str) -> None:
    modules("broken", "class Loss(:\n")
    modules("leaves", "raise SystemExit(3)")
    modules("raises", "class Loss:\n    def __init__(self, setup):\n        {}['option']\n")
    modules("bare", "class Loss:\n    def __init__(self, setup):\n        pass\n")
    modules("taken", "from my_losses import *\nclass Loss(RewardWeighted): metrics = ('samples',)")
    named = r"metrics = ('\x1b[2J',)"
    modules("escapes", f"from my_losses import *\nclass Loss(RewardWeighted): {named}")
    modules("word", "from my_losses import *\nclass Loss(RewardWeighted): samplers = 'ode'")
    with pytest.raises(JobError) as refused:
        build(loss)
    assert refused.value.path == "training.loss"
    assert f"`{loss}`" in str(refused.value) and words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("terms", "def terms(self, *_):\n    return 3", "terms() returned int, not `Terms`"),
        ("terms", "def terms(self, *_):\n    return {}['x']", "terms() raised KeyError: 'x'"),
        (
            "evaluate",
            "def evaluate(self, terms, velocities):\n"
            "    return velocities.current.mean(), {'error': terms.sigmas}",
            "evaluate() returned losses of shape (), not one value per row (8,)",
        ),
        (
            "evaluate",
            "def evaluate(self, terms, velocities):\n"
            "    return terms.sigmas, {'error': terms.sigmas}",
            "evaluate() returned losses without a gradient",
        ),
        (
            "evaluate",
            "def evaluate(self, terms, velocities):\n"
            "    return row_mean(velocities.current), {'eror': terms.sigmas}",
            "evaluate() returned no metric `error`",
        ),
        (
            "evaluate",
            "def evaluate(self, terms, velocities):\n    return row_mean(velocities.current), 3",
            "evaluate() returned int as metrics",
        ),
        (
            "evaluate",
            "def evaluate(self, terms, velocities):\n    raise TypeError('two\\nlines')",
            "evaluate() raised TypeError: two lines",
        ),
    ],
)
def test_what_a_loss_does_wrong_is_one_line_and_changes_nothing(
    modules, name: str, code: str, words: str
) -> None:
    loss = variant(modules, f"wrong_{abs(hash(code))}", **{name: code})
    trainer = build(loss)
    before = trainer.state_dict()
    with pytest.raises(LossFailed) as failed:
        trainer.train(0, make_batch(FakeModel()))
    assert str(failed.value).startswith(f"training.loss: `{loss}`: ")
    assert words in str(failed.value) and "\n" not in str(failed.value)
    after = trainer.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_loss_that_cannot_be_summed_over_slices_says_so(modules) -> None:
    loss = variant(modules, "whole", sums="sums_over_slices = False")
    build(loss).train(0, make_batch(FakeModel()))
    training = msgspec.structs.replace(NFT, loss=loss, options={}, slices=4)
    with pytest.raises(JobError, match=rf"must be 1, not 4, with the loss `{loss}`") as refused:
        Trainer(FakeModel(), training, SAMPLER, seed=0)
    assert refused.value.path == "training.slices"


def test_terms_of_unequal_length_are_refused(modules) -> None:
    code = (
        "def terms(self, *arguments):\n"
        "    import dataclasses\n"
        "    terms = super().terms(*arguments)\n"
        "    return dataclasses.replace(terms, sigmas=terms.sigmas[:-1])"
    )
    with pytest.raises(LossFailed, match=r"returned 7 rows of `sigmas`, but 8 of `samples`"):
        build(variant(modules, "short", terms=code)).train(0, make_batch(FakeModel()))
