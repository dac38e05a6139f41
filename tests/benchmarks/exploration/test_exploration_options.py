"""The options of `benchmarks.exploration`."""

from __future__ import annotations

import pytest

from benchmarks.exploration.__main__ import main


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tables", "missing.md"], "--tables: missing.md is not a file"),
        (["--quick", "--tables", "README.md"], "--tables: not with --quick"),
        (["--runs", "/dev/null/runs"], "--runs: /dev/null/runs: Not a directory"),
        (["--seeds", "0"], "argument --seeds: must be a whole number of 1 at least, not `0`"),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_anything_is_made(
    options: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["exploration", *options])
    with pytest.raises(SystemExit):
        main()
    assert problem in capsys.readouterr().err
