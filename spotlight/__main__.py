"""`python -m spotlight`: the `spotlight` command."""

from spotlight.cli.app import main

main()
