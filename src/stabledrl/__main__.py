"""`python -m stabledrl` is the console script."""

import sys

from stabledrl.cli import main

if __name__ == "__main__":
    sys.exit(main())
