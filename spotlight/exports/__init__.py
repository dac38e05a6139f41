"""Exports of a run that users ask for, each made in a process of its own, so that the command line
stays free of torch. What a job exports by itself is written by its trainer.
"""
