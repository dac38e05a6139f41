"""Decisions: pure functions and small state machines. No I/O, no clock, no torch, no actor."""
