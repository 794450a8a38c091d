"""`python -m polo_lab` is `polo-lab`."""

from polo_lab.cli import main

if __name__ == "__main__":
    main()
