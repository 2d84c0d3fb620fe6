"""docs/faults.md leaves out no fault, and names tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INDEX = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \|(.*)\|$", INDEX, re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def functions_of(file: str) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_fault_is_there_once() -> None:
    assert sorted(int(number) for number, _ in ROWS) == list(range(1, 32))


@pytest.mark.parametrize(("number", "row"), ROWS, ids=[number for number, _ in ROWS])
def test_every_fault_has_tests_and_they_exist(number: str, row: str) -> None:
    *told, tests = (cell.strip() for cell in row.split("|"))
    assert len(told) == 2
    assert all(told)
    named = NAMED.findall(tests)
    assert named
    # Nothing but tests stands in the last column.
    assert NAMED.sub("", tests).strip(" ,") == ""
    for file, name in named:
        assert name.startswith("test_")
        assert name in functions_of(file), f"{file} has no {name}"
