"""Rollouts for another program's training loop: publish weights, ask for prompt groups, take them
as they are done.

`rollouts.Rollouts` is what users see; `session_link` keeps the session with the coordinator, across
lost messages and losses of the coordinator; `versions` says which weights a request gets. Nothing
here loads torch unless tensors are published or fetched.
"""
