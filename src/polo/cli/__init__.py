"""The command line: `polo`, one file per group of commands.

Exit codes: 0 accepted or done, 1 rejected or refused, 2 could not decide or not understood. The
modules here import what is heavy inside the commands, so that `polo --help` needs neither numpy
nor torch.
"""

import os
import sys

from cyclopts import App, CycloptsError

from polo._version import __version__
from polo.cli import enrol, keys, quickstart, validate, verify
from polo.errors import PoloError

app = App(
    name="polo",
    help="Prove that you trained a model and that it is yours.",
    help_epilogue="Start with: polo quickstart",
    version=__version__,
    help_format="plaintext",
)
app.command(quickstart.quickstart)
app.command(keys.keygen)
app.command(keys.trust)
app.command(enrol.enrol)
app.command(validate.validate)
app.command(verify.verify)
app.command(verify.show)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line, and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code. Errors never end in a traceback, unless `POLO_DEBUG` asks for one.
    """
    try:
        result = app(arguments, exit_on_error=False, print_error=True, result_action="return_value")
    except CycloptsError:
        return 2
    except PoloError as error:
        print(f"polo: {error.diagnostics()}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("polo: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except Exception as error:
        if os.environ.get("POLO_DEBUG"):
            raise
        print(f"polo: {type(error).__name__}: {error}", file=sys.stderr)
        print("  what to do: set POLO_DEBUG=1 to see where, and report it", file=sys.stderr)
        return 2
    return result if isinstance(result, int) else 0
