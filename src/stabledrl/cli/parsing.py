"""Errors of the command line and of YAML files, in one line."""

import re
from typing import Any, NoReturn

from jsonargparse import ArgumentParser
from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from stabledrl.errors import UserInputError


def one_line(message: str) -> str:
    """What a parser's error is about, without the dump of everything it tried.

    Args:
        message: The parser's message, of any length.

    Returns:
        One line of at most 400 characters.
    """
    lines = [line.strip(" -\t") for line in message.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(_TELLING, line)] or lines
    unique = list(dict.fromkeys([*lines[:1], *telling]))
    text = "; ".join(unique)
    return text if len(text) <= 400 else f"{text[:400]}..."


_TELLING = r"(?i)not (?:a valid|accepted|found|expected|importable)|no module|unable|does not|unrecognized|expected|error|must"


class OneLineParser(ArgumentParser):
    """A parser whose errors are `UserInputError`s of one line."""

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserInputError(one_line(message)) from ex


class OneLineTrainerParser(LightningArgumentParser):
    """Lightning's parser, with errors that are `UserInputError`s of one line."""

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserInputError(one_line(message)) from ex


def call(function: Any, options: list[str], prog: str) -> Any:
    """Calls a function with its parameters parsed from options."""
    parser = OneLineParser(prog=prog, description=(function.__doc__ or "").partition("\n\n")[0])
    parser.add_function_arguments(function, as_positional=True)
    return function(**parser.parse_args(options).as_dict())
