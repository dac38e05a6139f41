"""Lists of prompts as people have them, and what else they write in files."""

from __future__ import annotations

import shutil
from codecs import BOM_UTF8
from pathlib import Path

import yaml

from benchmarks.users.case import Check, Ended, case, require, spotlight
from spotlight.actors.coordinator.tenant.job_journal import require_same_prompts
from spotlight.assets import ASSETS, read_prompt_lines, read_prompts
from spotlight.jobs import load_job
from spotlight.preflight.checks import read_job_files
from spotlight.rewards.quotes import quoted_text
from spotlight.store.run_folder import RunFolder

_TEXT = "".join(f'the number "{number}"\n' for number in range(1000, 1016))
_CHECKPOINT = "builtin:ocr-tiny"


def _job_file(folder: Path, prompts: Path | str, checkpoint: str = _CHECKPOINT) -> Path:
    job = {
        "name": "mine",
        "model": {"checkpoint": checkpoint},
        "prompts": {"train": str(prompts), "validation": f"{_CHECKPOINT}/validation"},
        "sampler": {"height": 16, "width": 48},
    }
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job), encoding="utf-8")
    return file


def _planned(folder: Path, data: str | bytes, name: str = "prompts.txt") -> Ended:
    """`spotlight plan` of a job that trains on these prompts."""
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return spotlight(["plan", _job_file(folder, name)], folder)


def _refusal(text: str, name: str, *words: str) -> Check:
    """That prompts are refused in these words."""

    def check(folder: Path) -> None:
        _planned(folder, text, name).says(2, "prompts.train", *words)

    return check


_OTHER_FORMATS = {
    "a CSV file": ('id,prompt\n1,"the number ""1000"""\n', "prompts.csv", "is CSV by its name"),
    "CSV under another name": ("prompt,tag\na cat,x\n", "prompts.txt", "line 1: is the head of a"),
    "CSV without a head": ("a cat,animals\na sun,sky\n", "list", "line 1: is a row of a table"),
    "a table with tabs": ("a cat\tanimals\n", "prompts.txt", "line 1: has a tab"),
    "YAML": ("prompts:\n- a cat\n", "prompts.txt", "line 1: gives a prompt a name"),
    "a YAML list": ("- a cat\n- a dog\n", "prompts.txt", "line 1: is an item of a list"),
    "a numbered list": ("1. a cat\n2. a dog\n", "prompts.txt", "line 1: has a number"),
    "a JSON list": ('["a cat", "a dog"]\n', "prompts.json", "line 1: is JSON"),
    "Markdown": ("# Signs\n\na cat\n", "prompts.md", "line 1: is a heading or a comment"),
}
for _name, (_list, _file, _what) in _OTHER_FORMATS.items():
    case(f"prompts as {_name}", quick=_name == "a numbered list")(
        _refusal(_list, _file, _what, "such a list is not read", "JSON lines")
    )
_STRAY = {"NUL": "\0", "a form feed": "\x0c", "a line separator": "\u2028", "half a mark": "\ufeff"}
for _name, _stray in _STRAY.items():
    _what = f"line 17: holds the character U+{ord(_stray):04X}"
    case(f"{_name} in a prompt")(
        _refusal(f'{_TEXT}the{_stray}number "1"\n', "prompts.txt", _what, "remove it")
    )


@case("JSON lines whose file is called .txt")
def _json_lines(folder: Path) -> None:
    lines = "".join(f'{{"prompt": "the number \\"{n}\\"", "tag": "x"}}\n' for n in range(50, 60))
    _planned(folder, lines).says(0, "10 to train on")
    (first, *_) = read_prompt_lines(folder / "prompts.txt").items
    require((first.text, first.metadata) == ('the number "50"', {"tag": "x"}), first)


@case("a byte order mark before the prompts", quick=True)
def _mark_before_prompts(folder: Path) -> None:
    _planned(folder, BOM_UTF8 + _TEXT.encode()).says(0)
    require(read_prompts(folder / "prompts.txt") == _TEXT.splitlines(), "another first prompt")


@case("a byte order mark before JSON lines")
def _mark_before_json(folder: Path) -> None:
    lines = "".join(f'{{"prompt": "the number \\"{n}\\""}}\n' for n in range(50, 60))
    _planned(folder, BOM_UTF8 + lines.encode(), "prompts.jsonl").says(0, "10 to train on")


@case("prompts in UTF-16, as an editor saves them")
def _utf16(folder: Path) -> None:
    _planned(folder, _TEXT.encode("utf-16")).says(2, "UTF-16", "save it as UTF-8")


@case("prompts with the line ends of another system")
def _line_ends(folder: Path) -> None:
    _planned(folder, _TEXT.replace("\n", "\r\n")).says(0, "16 to train on")


@case("a byte order mark before a job file")
def _mark_before_job(folder: Path) -> None:
    file = _job_file(folder, f"{_CHECKPOINT}/train")
    file.write_bytes(BOM_UTF8 + file.read_bytes())
    spotlight(["plan", file], folder).says(0, "512 to train on")


@case("a byte order mark before model_index.json")
def _mark_before_index(folder: Path) -> None:
    shutil.copytree(ASSETS / "ocr-tiny", folder / "model")
    index = folder / "model" / "model_index.json"
    index.write_bytes(BOM_UTF8 + index.read_bytes())
    file = _job_file(folder, f"{_CHECKPOINT}/train", str(folder / "model"))
    spotlight(["plan", file], folder).says(0, "512 to train on")


@case("a byte order mark before the config of a part, which diffusers cannot read")
def _mark_before_config(folder: Path) -> None:
    shutil.copytree(ASSETS / "ocr-tiny", folder / "model")
    config = folder / "model" / "transformer" / "config.json"
    config.write_bytes(BOM_UTF8 + config.read_bytes())
    file = _job_file(folder, f"{_CHECKPOINT}/train", str(folder / "model"))
    spotlight(["plan", file], folder).says(2, "config.json begins with a byte order mark")


@case("a run that is resumed after its prompts were changed")
def _changed(folder: Path) -> None:
    (folder / "prompts.txt").write_text(_TEXT)
    job = load_job(_job_file(folder, folder / "prompts.txt"))
    run = RunFolder.create(folder / "run", job)
    require_same_prompts(run.journal, read_job_files(job).prompt_digests)
    run.close()
    (folder / "prompts.txt").write_text(_TEXT.replace("1003", "2003"))
    spotlight(["run", "--resume", folder / "run"], folder).says(
        2, "prompts.train: these are other prompts than those", "begin a new run"
    )


@case("prompts for models of real size")
def _signs(folder: Path) -> None:
    texts = [prompt.text.split('"')[1] for prompt in read_prompt_lines("builtin:signs/train").items]
    lengths = {len(text.split()) for text in texts}
    require(lengths == {1, 2, 3, 5, 7, 10}, lengths)
    require(all(quoted_text(f'"{text}"') for text in texts), "a sign without text")
