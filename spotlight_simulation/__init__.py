"""The control plane without waiting: an event loop on virtual time."""
