"""`python -m asyncrl` is `asyncrl`."""

from __future__ import annotations

import sys

from asyncrl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
