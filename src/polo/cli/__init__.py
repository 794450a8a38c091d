"""The command line: `polo`, one file per group of commands.

Exit codes: 0 accepted, claimed, or done; 1 rejected (`verify`), no claim (`identify`), unrelated
(`compare`), does not fit (`validate`) or lies (`log audit`); 2 could not decide, could not be done,
or not understood. The modules here import what is heavy inside the commands, so that `polo --help`
needs neither numpy nor torch.
"""

import io
import os
import signal
import sys

from cyclopts import App, CycloptsError

from polo._version import __version__
from polo.cli import (
    bundles,
    data,
    enrol,
    identity,
    keys,
    live,
    log,
    ownership,
    quickstart,
    registry,
    registry_operations,
    registry_worker,
    replay,
    submit,
    transfer,
    validate,
    verify,
)
from polo.errors import PoloError

app = App(
    name="polo",
    help="Prove that you trained a model and that it is yours.\n\nStart with: polo quickstart",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
app.command(quickstart.quickstart)
app.command(keys.keygen)
app.command(keys.trust)
app.command(data.data)
app.command(enrol.enrol)
app.command(submit.submit)
app.command(live.status)
app.command(identity.identity)
app.command(validate.validate)
app.command(verify.verify)
app.command(verify.show)
app.command(replay.challenge)
app.command(replay.answer)
app.command(transfer.transfer)
app.command(bundles.disclose)
app.command(bundles.export)
app.command(bundles.import_, name="import")
app.command(ownership.identify)
app.command(ownership.compare)
app.command(log.log)
app.command(registry.registry)
for _operation in (
    registry_operations.backup,
    registry_operations.restore,
    registry_operations.doctor,
    registry_worker.worker,
):
    registry.registry.command(_operation)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line, and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or a file name in another encoding is no reason to lose a verdict.
            stream.reconfigure(errors="backslashreplace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # Under nohup it is not ours to hear.
            signal.signal(number, _end)
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
        _complain(error.diagnostics())
        return 2
    except KeyboardInterrupt:
        print("polo: interrupted", file=sys.stderr)
        return 130
    except _Ended as ended:
        print("polo: ended by a signal", file=sys.stderr)
        return int(ended.code)
    except (BrokenPipeError, SystemExit):
        # Whoever read our output has gone; rich says so by SystemExit. No verdict was delivered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        _complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        return 2
    except Exception as error:
        if os.environ.get("POLO_DEBUG"):
            raise
        _complain(
            f"{type(error).__name__}: {error}\n"
            "  what to do: set POLO_DEBUG=1 to see where, and report it"
        )
        return 2
    return result if isinstance(result, int) else 0


class _Ended(SystemExit):
    """Somebody asked the process to end: what was unpacked is removed on the way out."""

    code: int


def _end(number: int, _frame: object) -> None:
    # A second one must not stop the cleaning up.
    signal.signal(number, signal.SIG_IGN)
    raise _Ended(128 + number)


def _complain(text: str) -> None:
    """Print an error; what it quotes from files must not act on the terminal."""
    from polo.checks import plain

    print("polo: " + "\n".join(plain(line) for line in text.splitlines()), file=sys.stderr)
