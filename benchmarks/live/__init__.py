"""Strikes real processes of this machine: kills, stops, preemptions, a network that is cut."""
