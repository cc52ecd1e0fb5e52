"""`python -m tercet` is the command `tercet`."""

from tercet.cli.main import main

main()
