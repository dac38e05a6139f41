"""A setting of structlog for a while leaves none behind."""

import structlog

from spotlight_simulation.logging_for_now import logging_by


def drop(*_: object) -> None:
    raise structlog.DropEvent


def test_a_process_without_a_setting_has_none_again() -> None:
    structlog.reset_defaults()
    with logging_by([drop]):
        assert structlog.is_configured()
    assert not structlog.is_configured()


def test_a_setting_of_before_comes_back() -> None:
    try:
        structlog.configure(processors=[drop])
        with logging_by([], "critical"):
            pass
        assert structlog.get_config()["processors"] == [drop]
    finally:
        structlog.reset_defaults()
