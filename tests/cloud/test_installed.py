"""Notice sources of packages that are installed on a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.cloud.installed import installed_sources
from spotlight.errors import UserError

MODULE = """
class Foreman:
    name = "foreman"
    poll_s = 2.0

    async def read(self):
        return ()


class Broken:
    def __init__(self):
        raise OSError("no such socket")


class Mute:
    name = "mute"
    poll_s = 2.0
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs a package whose entry point names that class."""

    def put(target: str) -> None:
        (tmp_path / "own_notices.py").write_text(MODULE)
        installed = tmp_path / "own_notices-1.0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: own-notices\nVersion: 1.0\n"
        )
        (installed / "entry_points.txt").write_text(f"[spotlight.notices]\nforeman = {target}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return put


def test_a_class_of_another_package_gives_notice(install) -> None:
    install("own_notices:Foreman")
    assert [source.name for source in installed_sources()] == ["foreman"]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("own_notices:Broken", "no such socket"),
        ("own_notices:Absent", "Absent"),
        ("no_module_of_this_name:Foreman", "no_module_of_this_name"),
        ("own_notices:Mute", "has no `read`"),
    ],
)
def test_one_that_cannot_be_used_is_refused_by_the_name_of_its_entry_point(
    install, target: str, why: str
) -> None:
    install(target)
    with pytest.raises(UserError, match="the notice source `foreman`") as caught:
        installed_sources()
    assert why in str(caught.value)


def test_without_such_packages_there_are_none() -> None:
    assert installed_sources() == []
