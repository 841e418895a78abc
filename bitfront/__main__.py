"""`python -m bitfront` is the command `bitfront`."""

from __future__ import annotations

import sys

from bitfront.shadows import check_packages


def main() -> None:
    """Run the command line."""
    try:
        check_packages()
    except ImportError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    from bitfront.cli.main import main as run  # only now it is known that this `studies` is ours

    run()


if __name__ == "__main__":
    main()
