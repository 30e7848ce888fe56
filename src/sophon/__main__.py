"""`python -m sophon`: the command line, for use when the `sophon` script is not on the path."""

from __future__ import annotations

from sophon.cli.main import main

if __name__ == "__main__":
    main()
