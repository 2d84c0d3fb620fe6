"""Parsers whose errors are one line, and a look at configuration files before a parser reads them."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from stabledrl.cli.diagnosis import explain, hint, options_of, sections
from stabledrl.errors import UserInputError


class OneLineParser(ArgumentParser):
    """A parser whose errors are `UserInputError`s of one line."""

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserInputError(explain(message, self)) from ex


class OneLineTrainerParser(LightningArgumentParser):
    """Lightning's parser, with errors that are `UserInputError`s of one line."""

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserInputError(explain(message, self)) from ex


def call(function: Any, options: list[str], prog: str) -> Any:
    """Calls a function with its parameters parsed from options. Switches need no value: --overwrite is true."""
    parser = OneLineParser(prog=prog, description=(function.__doc__ or "").partition("\n\n")[0])
    parser.add_function_arguments(function, as_positional=True)
    switches = {f"--{name}" for name, kind in get_type_hints(function).items() if kind is bool}
    following = [*options[1:], ""]
    given = [
        f"{option}=true" if option in switches and after not in ("true", "false") else option
        for option, after in zip(options, following)
    ]
    return function(**parser.parse_args(given).as_dict())


def find_user_error(error: BaseException) -> UserInputError | None:
    """The innermost `UserInputError` that an error came from, if any."""
    found = None
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, UserInputError):
            found = link
        link = link.__cause__ or link.__context__
    return found


def config_files(options: Sequence[str]) -> Iterator[str]:
    """The arguments of -c and --config."""
    for index, option in enumerate(options):
        name, equals, value = option.partition("=")
        if name == "--config" and equals:
            yield value
        elif option in ("-c", "--config") and index + 1 < len(options):
            yield options[index + 1]


def check_config_file(path: str, parser: argparse.ArgumentParser) -> None:
    """Refuses a file that is absent, no YAML, no mapping, or has sections that do not exist.

    The parser would say so too, but not of which file, and it passes over an unknown section that is empty.

    Args:
        path: Path of the file.
        parser: Knows the sections.

    Raises:
        UserInputError: The file cannot be used.
    """
    if not Path(path).is_file():
        raise UserInputError(f"no configuration file at {path!r}{_neighbours(path)}")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserInputError(f"{path!r} is not a text file: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UserInputError(f"{path!r} is not valid YAML{place}: {problem}") from error
    if content is None:
        raise UserInputError(f"{path!r} is empty; expected sections such as model, data and trainer")
    if not isinstance(content, dict):
        raise UserInputError(f"{path!r} holds a {type(content).__name__}; expected sections such as model and data")
    known = sections(options_of(parser))
    for name in map(str, content):
        if name.partition(".")[0] not in known:
            raise UserInputError(f"{name!r} in {path!r} is no section{hint(name, known)}")


def _neighbours(path: str) -> str:
    """Names of the configuration files that are there instead."""
    directory = Path(path).parent
    return hint(Path(path).name, {file.name for file in directory.glob("*.yaml")}, word=f"in {str(directory)!r}")
