"""Parsers' reports become one line."""

from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from stabledrl.cli.diagnosis import explain, hint
from stabledrl.cli.parsing import call, check_config_file, config_files
from stabledrl.errors import UserInputError

UNION = """Parser key "{key}":
  Does not validate against any of the Union subtypes
  Subtypes: [<class 'float'>, <class 'NoneType'>]
  Errors:
    - {first}
    - Expected a <class 'NoneType'>
  Given value type: <class 'str'>
  Given value: {value}"""


@pytest.fixture
def parser() -> ArgumentParser:
    parser = ArgumentParser()
    parser.add_argument("--group.size", type=int, default=1)
    parser.add_argument("--group.shape", type=str, default="x")
    parser.add_argument("--speed", type=float, default=1.0)
    return parser


def test_a_union_is_told_in_words(parser: ArgumentParser) -> None:
    message = UNION.format(key="speed", first="Expected a <class 'float'>", value="fast")
    assert explain(message, parser) == "speed: expected a number or null, got 'fast'"


def test_an_inner_message_is_extended_by_the_outer_key(parser: ArgumentParser) -> None:
    inner = UNION.format(key="eps", first="Expected a <class 'float'>", value="fast")
    outer = UNION.format(key="model", first=explain(inner, parser), value="NestedArg(...)")
    assert explain(outer, parser) == "model.init_args.eps: expected a number or null, got 'fast'"


def test_choices_are_told_once() -> None:
    lines = "\n".join(f"- Expected a typing.Literal['a', '{other}']" for other in ("b", "c"))
    message = f'Parser key "x":\n  Errors:\n{lines}\n  Given value: 3'
    assert explain(message, ArgumentParser()) == "x: expected one of a, b, c, got '3'"


def test_unknown_names_are_compared_within_their_section(parser: ArgumentParser) -> None:
    assert explain("Option 'group.sizes' is not accepted", parser) == (
        "group.sizes: no such option; did you mean group.size? Valid in group: shape, size"
    )
    assert explain("unrecognized arguments: --sped=3 x", parser) == (
        "unknown argument --sped; did you mean --speed? Valid: group, speed"
    )


def test_anything_else_stays_but_in_one_line(parser: ArgumentParser) -> None:
    assert explain("first\n  second\nfirst", parser) == "first; second"
    assert len(explain("word " * 1000, parser)) <= 403


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("stabledlr", ["StableDRL", "GRPO"], "; did you mean StableDRL? Valid: GRPO, StableDRL"),
        ("zzz", ["b", "a"], "; valid: a, b"),
        ("zzz", [], ""),
        ("n1x", [f"n{i}" for i in range(30)], "; did you mean n1?"),
    ],
)
def test_hint(name: str, known: list[str], expected: str) -> None:
    assert hint(name, known) == expected


def test_hint_ends_a_long_list_with_dots() -> None:
    assert hint("zzz", [f"name{i:02}" for i in range(30)]).endswith("name19, ...")


def test_config_files_are_found_in_all_spellings() -> None:
    options = ["-c", "a", "--config", "b", "--x", "--config=c", "--config.d=e", "-c"]
    assert list(config_files(options)) == ["a", "b", "c"]


def test_a_file_with_known_sections_passes(tmp_path: Path, parser: ArgumentParser) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("group: {size: 3}\nspeed: 2\n")
    check_config_file(str(file), parser)
    file.write_text("group.size: 3\n")
    check_config_file(str(file), parser)
    file.write_text("groups: {}\n")
    with pytest.raises(UserInputError, match=r"'groups' in '.*a.yaml' is no section; did you mean group\?"):
        check_config_file(str(file), parser)


def _function(name: str, *, force: bool = False, count: int = 1) -> tuple[str, bool, int]:
    """Does something.

    Args:
        name: A name.
        force: A switch.
        count: A number.
    """
    return name, force, count


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["007"], ("007", False, 1)),
        (["null", "--force"], ("null", True, 1)),
        (["--force", "a", "--count", "3"], ("a", True, 3)),
        (["a", "--force", "false"], ("a", False, 1)),
        (["a", "--force=true"], ("a", True, 1)),
    ],
)
def test_call(options: list[str], expected: tuple[str, bool, int]) -> None:
    assert call(_function, options, "prog") == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "required but not given: name"),
        (["a", "--cout", "3"], "unknown argument --cout; did you mean --count"),
        (["a", "--count", "x"], "count: expected a whole number, got 'x'"),
    ],
)
def test_call_refuses(options: list[str], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        call(_function, options, "prog")
