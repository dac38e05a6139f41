"""The command line: thin commands over the same actors that daemons and embedders use. No decisions
here.
"""
