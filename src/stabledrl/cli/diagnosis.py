"""From a parser's report of everything it tried to the one line that a user needs."""

import argparse
import difflib
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any, get_args

_NOISE = (
    "Does not validate against",
    "Subtypes:",
    "Errors:",
    "Given value",
    "Expected a path but",
    "Not a valid subclass",
    "Subclass types expect",
    "a class path (str)",
    "a dict ",
)
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "NoneType": "null",
    "dict": "a mapping",
    "list": "a list",
}
_LONGEST_VALUE = 80
_LONGEST_LINE = 400
_MOST_NAMES = 12
_MOST_LISTED = 20
_NOT_ACCEPTED = (
    r"(?:Subcommand '\w+' |Group '(?P<group>[^']+)' )?(?:does not accept option|Option) "
    r"'(?P<key>[^']+)'(?: is not accepted)?"
)
_FRAMEWORKS = ("torch", "lightning", "jsonargparse")


def explain(message: str, parser: argparse.ArgumentParser) -> str:
    """Says in one line what is wrong with which setting, and what would be right.

    A message about a setting starts with its path, by which the message of an outer parser extends it.

    Args:
        message: The parser's message, of any length. It may hold an explained message of a nested parser.
        parser: The parser that failed: it knows the options and classes that would be valid.

    Returns:
        One line of at most 400 characters.
    """
    head = re.match(r'Parser key "(?P<key>[^"]+)"(?: element \d+)?:\s*(?P<rest>.*)', message, re.DOTALL)
    key, body = (head["key"], head["rest"]) if head else ("", message)
    lines = [line.strip(" -\t") for line in body.splitlines()]
    lines = [line for line in lines if line and not line.startswith(_NOISE)]
    text = _unknown_option(message, parser) or _missing(message) or _about_value(key, lines, body, parser)
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."


def hint(
    name: str, known: Iterable[str], shown: Iterable[str] | None = None, *, word: str = "valid", lead: str = ""
) -> str:
    """What would be right in the place of an unknown name: the closest one, and all where they are not too many.

    Args:
        name: The unknown name.
        known: What it is compared with.
        shown: What is listed; None lists what it is compared with.
        word: Introduces the list.
        lead: Stands before the closest name.

    Returns:
        The end of a sentence, from its semicolon on.
    """
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    ordered = sorted(by_lower.values() if shown is None else shown)
    if not ordered or (close and len(ordered) > _MOST_NAMES):
        return f"; did you mean {lead}{by_lower[close[0]]}?" if close else ""
    names = ", ".join(ordered[:_MOST_LISTED]) + (", ..." if len(ordered) > _MOST_LISTED else "")
    return (
        f"; did you mean {lead}{by_lower[close[0]]}? {word[0].upper()}{word[1:]}: {names}"
        if close
        else f"; {word}: {names}"
    )


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Paths of all options of a parser and of its subcommands."""
    return {action.dest for action in _actions(parser)} - {"help", "print_shtab"}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        choices = action.choices
        if isinstance(choices, dict):
            for child in choices.values():
                yield from _actions(child)
        elif choices is not None and hasattr(choices, "_name_parser_map"):
            for child in choices._name_parser_map.values():
                yield from _actions(child)
        else:
            yield action


def _unknown_option(message: str, parser: argparse.ArgumentParser) -> str | None:
    known = options_of(parser)
    if found := re.match(r"unrecognized arguments: (.*)", message):
        words = found[1].split()
        name = next((word for word in words if word.startswith("-")), words[0])
        name = name.partition("=")[0]
        return f"unknown argument {name}{_near_option(name.lstrip('-'), known, '--')}"
    found = re.fullmatch(_NOT_ACCEPTED, message.strip())
    if not found:
        return None
    key = f"{found['group']}.{found['key']}" if found["group"] else found["key"]
    return f"{key}: no such option{_near_option(key, known)}"


def _near_option(key: str, known: set[str], prefix: str = "") -> str:
    """A close match within the longest section that exists, and what that section holds."""
    section, siblings = key, set[str]()
    while section and not siblings:
        section = section.rpartition(".")[0]
        siblings = {name[len(section) + 1 :] for name in known if name.startswith(f"{section}.")}
    if not siblings:
        return hint(key, known | {name.partition(".")[0] for name in known}, sections(known), lead=prefix)
    tops = {name.partition(".")[0] for name in siblings}
    rest = key[len(section) + 1 :]
    return hint(rest, siblings | tops, tops, word=f"valid in {section}", lead=f"{prefix}{section}.")


def sections(options: Iterable[str]) -> set[str]:
    """The first parts of options' paths."""
    return {name.partition(".")[0] for name in options} - {"config", "print_config", "print_shtab"}


def _missing(message: str) -> str | None:
    found = re.search(r"the following arguments are required: (.*)", message)
    if not found or message.startswith("Parser key"):
        return None
    names = found[1].split(", ")
    # Only the trainer's commands name what is missing with their own name before it.
    bare = [re.sub(r"^(fit|validate|test|predict)\.", "", name) for name in names]
    where = "; settings come from files, such as -c configs/quickstart.yaml" if bare != names else ""
    return f"required but not given: {', '.join(bare)}{where}"


def _about_value(key: str, lines: list[str], body: str, parser: argparse.ArgumentParser) -> str:
    value = _value(body)
    expectations = [line for line in lines if re.match(r"Expected a (<class|typing\.|list|dict|tuple)", line)]
    # What a nested parser found is more telling than what else the value could have been.
    inner = [line for line in lines if re.match(r"[\w.]+: \S|required but not given", line)]
    if key and inner:
        glue = ": " if inner[0].startswith("required") else ".init_args."
        return f"{key}{glue}{inner[0]}"
    lead = f"{key}: " if key else ""
    if text := _class_problem(key, lines, parser):
        return f"{lead}{text}"
    if expectations and len(expectations) == len(lines):
        return f"{lead}expected {_expected(expectations)}" + (f", got {value!r}" if value is not None else "")
    others = [line for line in lines if line not in expectations] or lines or [body.strip()]
    return lead + "; ".join(dict.fromkeys(others))


def _value(body: str) -> str | None:
    found = re.findall(r"(?:Given value|Got value): (.*)", body)
    if not found:
        return None
    value: str = found[-1].strip()
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}..."


def _expected(lines: list[str]) -> str:
    """Choices and types in words: "one of a, b or null"."""
    choices: list[str] = []
    types: list[str] = []
    for line in lines:
        what = re.sub(r"\. Got value: .*", "", line.removeprefix("Expected a "))
        if literal := re.fullmatch(r"typing\.Literal\[(.*)\]", what):
            choices += literal[1].replace("'", "").split(", ")
        else:
            what = re.sub(r"<class '([^']+)'>", r"\1", what)
            types.append(_TYPES.get(what, what))
    return " or ".join(dict.fromkeys([*([f"one of {', '.join(dict.fromkeys(choices))}"] if choices else []), *types]))


def _class_problem(key: str, lines: list[str], parser: argparse.ArgumentParser) -> str | None:
    """An unknown class, one that cannot be imported, or one of the wrong kind."""
    joined = "\n".join(lines)
    typehint = next((getattr(action, "_typehint", None) for action in _actions(parser) if action.dest == key), None)
    bases = list(dict.fromkeys(_classes(typehint)))
    classes = {name: module for base in bases for name, module in _subclasses(base)}
    own = {name for name, module in classes.items() if not module.startswith(_FRAMEWORKS)}

    def known(name: str) -> str:
        text = hint(name.rpartition(".")[2], classes, own or classes, word="known")
        return f"{text}, or an import path" if ": " in text else text

    if found := re.search(r"Expected a dot import path string: (\S+)", joined):
        kind = " or ".join(base.__name__ for base in bases) or "class or function"
        return f"no {kind} is called {found[1]!r}{known(found[1])}"
    if found := re.search(r"Import path (\S+) does not correspond to a subclass of (\S+)", joined):
        return f"{found[1]!r} is no {found[2]}{known(found[1])}"
    if found := re.search(r"Problem with given class_path '([^']+)':\n(.*)", joined):
        return f"cannot import {found[1]!r}: {found[2]}{known(found[1])}"
    if found := re.search(r"expects a function or a callable class: (.*?)(?:\. Got value: (\S+))?(?:\n|$)", joined):
        return f"{found[1]}{known(found[2] or '')}"
    return None


def _classes(hint: Any) -> Iterator[type]:
    """Classes that a type hint names, also within unions, lists and the return type of a callable."""
    if isinstance(hint, type) and hint.__module__ not in ("builtins", "typing", "types") and not get_args(hint):
        yield hint
    for argument in get_args(hint):
        yield from _classes(argument)


def _subclasses(base: type) -> Iterator[tuple[str, str]]:
    """Name and module of the concrete public classes below a class that are imported."""
    children: list[type] = base.__subclasses__()
    for child in children:
        private = child.__name__.startswith("_") or child.__module__.startswith("stabledrl.cli")
        if not inspect.isabstract(child) and not private:
            yield child.__name__, child.__module__
        yield from _subclasses(child)
