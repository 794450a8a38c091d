"""`python -m polo` is `polo`."""

from polo.cli import main

if __name__ == "__main__":
    main()
