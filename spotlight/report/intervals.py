"""Student's t, of which 95 % intervals are made here without SciPy."""

from __future__ import annotations

_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The 97.5 % quantile of Student's t, for 1, 2, ... degrees of freedom."""
_T95_MORE = ((15, 2.131), (20, 2.086), (30, 2.042), (60, 2.000))
"""The same from so many degrees of freedom on."""


def student_t95(degrees: float) -> float:
    """The 97.5 % quantile of Student's t; never too small, where it is not in the tables.

    Raises `ValueError` for less than one degree of freedom.
    """
    if not degrees >= 1:
        raise ValueError(f"an interval needs at least one degree of freedom, not {degrees:g}")
    if degrees < len(_T95) + 1:
        return _T95[int(degrees) - 1]
    more = [value for least, value in _T95_MORE if degrees >= least]
    return more[-1] if more else _T95[-1]
