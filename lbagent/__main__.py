"""`python -m lbagent`."""

from lbagent.cli.main import main

main()
