"""What the cloud around a node tells it. So far: preemption notices.

Only the node daemon imports this package: its HTTP client must not load elsewhere.
"""
