"""The command line: `stabledrl fit | validate | test | predict | plan | generate | export`."""

import difflib
import os
import signal
import sys
from collections.abc import Sequence

from stabledrl.errors import UserInputError

_HELP = """usage: stabledrl COMMAND [options]      (stabledrl COMMAND --help for its options)

  fit        train; settings from YAML files, -c FILE (repeat to layer) and from --section.name=value
  validate   accuracy of a checkpoint on the held-out prompts
  test       the same, by default of the newest checkpoint of the run
  predict    complete the held-out prompts, written to disk
  plan       memory per GPU that fit would take with the same settings; reads no weights
  generate   one prompt in, text out, from a checkpoint or a model directory
  export     write a checkpoint as a Hugging Face model directory

example: stabledrl fit -c configs/quickstart.yaml"""
_TRAINER_COMMANDS = ("fit", "validate", "test", "predict")
_COMMANDS = (*_TRAINER_COMMANDS, "plan", "generate", "export")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: Command and options; None takes those of the process.

    Returns:
        Exit code: 0, 1 if a planned run does not fit, 2 for a mistake of the user (told in one line on standard error),
        3 if a monitor stopped the run, 128 plus the signal's number if a signal ended it.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # A console script does not see the working directory, where users keep their own classes.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP)
        return 0 if arguments else 2
    command, options = arguments[0], arguments[1:]
    try:
        return _run(command, options)
    except UserInputError as error:
        if _tells(command, error):
            print(f"stabledrl {command}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stabledrl {command}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _tells(command: str, error: UserInputError) -> bool:
    if command not in _TRAINER_COMMANDS:
        return True
    from stabledrl.processes import is_first_to_tell

    return is_first_to_tell(error)


def _run(command: str, options: list[str]) -> int:
    # Imported late: `--help` and a mistyped command answer at once.
    if command == "--version":
        from stabledrl import __version__

        print(f"stabledrl {__version__}")
        return 0
    if command == "plan":
        from stabledrl.cli.plan import run_plan

        return run_plan(options)
    if command == "generate":
        from stabledrl.cli.generate import run_generate

        return run_generate(options)
    if command == "export":
        from stabledrl.cli.export import run_export

        return run_export(options)
    if command in _TRAINER_COMMANDS:
        from stabledrl.cli.training import run_training

        return run_training(command, options)
    close = difflib.get_close_matches(command, _COMMANDS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UserInputError(f"no command {command!r}{hint}; commands: {', '.join(_COMMANDS)}".replace("?;", "?"))
