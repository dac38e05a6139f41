"""Who is told of a run while it goes on: callbacks of your own, and trackers of experiments."""

from spotlight.trackers.callback import Callback, IterationRecord, RunRecords
from spotlight.trackers.callback_thread import CallbackThread, NamedCallback

__all__ = ["Callback", "CallbackThread", "IterationRecord", "NamedCallback", "RunRecords"]
