"""The command line: argument parsing and printing only. Heavy imports happen inside the commands.

`tailrace --help` is printed from `catalogue` without importing any command. Each command is one module with a
Typer `app`; it raises `InputError` for bad input, and this module turns that into one sentence and exit code 2.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import NoReturn

from tailrace.cli.catalogue import COMMANDS, render_help

EXIT_DONE = 0
EXIT_ANSWER = 1
"""The answer is the one that `--fail-on` named."""
EXIT_INPUT = 2
EXIT_INCONCLUSIVE = 3


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the `tailrace` command; always leaves through `SystemExit`."""
    _open_closed_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(render_help())
        raise SystemExit(EXIT_DONE)
    if args[0] in ("-V", "--version"):
        from tailrace import __version__

        sys.stdout.write(f"tailrace {__version__}\n")
        raise SystemExit(EXIT_DONE)
    name, rest = args[0], args[1:]
    command = COMMANDS.get(name)
    if command is None:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"Did you mean `tailrace {near[0]}`?" if near else "`tailrace --help` lists the commands."
        sys.stderr.write(f"tailrace: there is no command {name!r}. {hint}\n")
        raise SystemExit(EXIT_INPUT)
    _run(name, command.module, rest)


def _run(name: str, module: str, rest: list[str]) -> None:
    import importlib

    from tailrace.cli.printable import printable
    from tailrace.model.errors import InputError, TailraceError

    try:
        try:
            app = importlib.import_module(module).app
            app(args=rest, prog_name=f"tailrace {name}")
        finally:
            # Here, where a full disk can still be told; at the interpreter's exit it is a traceback.
            sys.stdout.flush()
    except InputError as error:
        sys.stderr.write(f"tailrace {name}: {printable(str(error))}\n")
        raise SystemExit(EXIT_INPUT) from None
    except TailraceError as error:
        # Not 1: that is an answer, and a script that reads it would take a damaged file for one.
        sys.stderr.write(f"tailrace {name}: {printable(str(error))}\n")
        raise SystemExit(EXIT_INPUT) from None
    except BrokenPipeError as error:
        _reader_left(error.__context__)
    except OSError as error:
        # A full disk under the output, a folder that may not be written to: the machine's, and it has its sentence.
        _drop_output()
        where = f"{error.filename}: " if error.filename else "the output: " if error.errno == errno.ENOSPC else ""
        said = error.strerror or str(error) or type(error).__name__
        sys.stderr.write(f"tailrace {name}: {printable(f'{where}{said}')}\n")
        raise SystemExit(EXIT_INPUT) from None
    except SystemExit as end:
        # Typer turns a broken pipe into exit code 1.
        if isinstance(end.__context__, BrokenPipeError):
            _reader_left(end)
        raise
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    raise SystemExit(EXIT_DONE)


def _open_closed_streams() -> None:
    """Whoever started us may have closed them (`>&-`, a service without a terminal): Python then has none at all."""
    import os

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # For the life of the process.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _drop_output() -> None:
    """What is still buffered would raise again at the interpreter's exit."""
    import contextlib
    import os

    with contextlib.suppress(OSError, ValueError):  # a stream that has no file, in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_left(end: BaseException | None) -> NoReturn:
    """The reader of our output has left (`| head`): there is nobody to tell, and nothing went wrong. The answer that
    `end` exits with, if there was one, stays.
    """
    _drop_output()
    answered = isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError)
    raise SystemExit(end.code if answered and isinstance(end, SystemExit) else EXIT_DONE) from None
