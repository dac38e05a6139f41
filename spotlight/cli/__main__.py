"""`python -m spotlight.cli`."""

from spotlight.cli.app import main

main()
