"""Who is told of a run while it goes on: callbacks of your own, and trackers of experiments."""

from spotlight.trackers.callback import Callback, IterationRecord, RunRecords, Told
from spotlight.trackers.callback_thread import CallbackThread, NamedCallback
from spotlight.trackers.pictures import ShownPicture, ValidationPictures

__all__ = [
    "Callback",
    "CallbackThread",
    "IterationRecord",
    "NamedCallback",
    "RunRecords",
    "ShownPicture",
    "Told",
    "ValidationPictures",
]
