"""`python -m studies.cli` is `bitfront`."""

from studies.cli.main import main

main()
