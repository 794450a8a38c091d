"""`polo registry backup`, `restore` and `doctor`."""

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from polo.cli.output import Flag, print_json, size
from polo.cli.registry import DEFAULT, Options, load, need_parts

Everything = Annotated[bool, Parameter(name="--all", negative="", show_default=False)]


def backup(
    out: Path,
    /,
    *,
    without_key: Flag = False,
    without_files: Flag = False,
    json: Flag = False,
    options: Options = DEFAULT,
) -> None:
    """Write everything into one file, while the registry goes on serving.

    With the key in it, the file is all that the registry is: whoever has it can
    sign as the registry. Keep it like the key itself, or keep both apart.

    Example: polo registry backup /backups/2027-01-15.tar --without-key

    Parameters
    ----------
    out
        The file, which must not be there yet.
    without_key
        Leave the data key out; without it nothing secret can be read, and nothing restored.
    without_files
        Leave uploaded files out, where the object store has a backup of its own.
    json
        Print JSON.
    """
    need_parts()
    from polo.registry.operations.backup import backup as write

    made = write(load(options), out, with_key=not without_key, with_objects=not without_files)
    if json:
        told = {"file": str(out), "bytes": made.bytes, "objects": made.objects, "gone": made.gone}
        print_json({**told, "about": made.about.to_json()})
        return
    print(f"{out}  {size(made.bytes)}: {made.about.size} entries of the log, {made.objects} files")
    if without_key:
        print("without the data key: see that you have a copy of it elsewhere")
    else:
        print("with the data key: whoever has this file can sign as the registry")


def restore(source: Path, /, *, json: Flag = False, options: Options = DEFAULT) -> None:
    """Make a registry out of a backup, where none is yet.

    The kind of database may be another.

    Digests, the log, receipts and secrets are checked before anything counts.

    Example: polo registry restore /backups/2027-01-15.tar --data /srv/polo

    Parameters
    ----------
    source
        The backup.
    json
        Print JSON.
    """
    need_parts()
    from polo.registry.operations.restore import restore as read

    settings = load(options)
    about = read(settings, source)
    if json:
        print_json(about.to_json())
        return
    print(f"restored {about.origin}: {about.size} entries of the log, all of them checked")
    folder, origin = shlex.quote(str(settings.data)), shlex.quote(about.origin)
    print(f"next: polo registry doctor --all --data {folder} --set origin={origin}")
    print("then start it as the old one was: with the same origin, and this folder")


def doctor(
    *, everything: Everything = False, json: Flag = False, options: Options = DEFAULT
) -> int:
    """Look the registry over, running or not, and say what to do about what is wrong.

    Exit codes: 0 nothing is wrong, 1 something is, 2 it could not be looked at.

    Parameters
    ----------
    everything
        Look at every entry, receipt, secret and file instead of a sample; may take long.
    json
        Print JSON.
    """
    need_parts()
    from dataclasses import asdict

    from polo.registry.operations.doctor import BAD, examine

    lines = []
    for line in examine(load(options), everything=everything):
        lines.append(line)
        if not json:
            print(f"{line.state:8} {line.about:14} {line.found}", flush=True)
            if line.advice:
                print(f"{'':23} what to do: {line.advice}", flush=True)
    if json:
        print_json([asdict(line) for line in lines])
    return 1 if any(line.state == BAD for line in lines) else 0
