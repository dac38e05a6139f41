"""When Python looks for cyclic garbage in a daemon: at moments that somebody chose.

A full collection looks at every object that was made since the process started and stops the event
loop meanwhile: for about 100 ms in a coordinator of 4,000 workers. With Python's own thresholds it
comes whenever enough is new, also while workers wait for their next batch. Nearly everything is
freed as soon as nothing refers to it, without a collection.
"""

from __future__ import annotations

import gc

THRESHOLDS = (2_000, 5, 1_000)
"""A young collection looks at 2,000 objects, a middle one at 10,000: 0.3 to 3 us each. A full one
comes by itself only when ten million more objects are there than before: no program that takes a
moment to `collect` now and then gets there."""


def tune() -> None:
    """The daemon has started: what is imported and made by now never goes, so no collection looks
    at it again; and full ones are put off until `collect`."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def collect() -> None:
    """Nobody waits just now: make up for the collections that were put off. In a process that was
    not tuned none were, so there is nothing to do."""
    if gc.get_threshold() == THRESHOLDS:
        gc.collect()
