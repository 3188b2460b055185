"""`python -m tests.faults`: a thousand kills per backend, and the table. `--kills 50` for a first look."""

from __future__ import annotations

import argparse
import sys

from tests.faults.backends import BACKENDS
from tests.faults.long import thousand_kills


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--backend", choices=sorted(BACKENDS), action="append", help="only this one")
    parser.add_argument("--kills", type=int, default=1000, help="per backend")
    options = parser.parse_args()
    chosen = [BACKENDS[name] for name in options.backend or BACKENDS]
    return min(thousand_kills(chosen, kills=options.kills, tell=lambda text: print(text, flush=True)), 1)


if __name__ == "__main__":
    sys.exit(main())
