"""The pull scheduler's decisions: who may work on what, until when, and what counts.

`table` takes events and gives instructions; `rows` are what it keeps, `waiting` and `takers` its
indices, `pace` what it learns about speed, `instructions` what the dispatcher must do.
"""
