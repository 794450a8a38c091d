"""`python -m polo` is `polo`."""

import os
import sys

if __name__ == "__main__":
    # Python puts the current folder first. A proof may lie there, and nothing of it is imported.
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]

    from polo.cli import main

    main()
