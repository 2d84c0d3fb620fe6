"""The 288 complete 4x4 Sudoku grids, and what puzzles have to do with them."""

import functools
import itertools

CELLS = 16


@functools.cache
def all_grids() -> tuple[str, ...]:
    """Every complete grid as 16 digits, row by row, in ascending order."""
    rows = ["".join(row) for row in itertools.permutations("1234")]
    bands = [above + below for above in rows for below in rows if _boxes_valid(above, below)]
    return tuple(top + bottom for top in bands for bottom in bands if _columns_valid(top + bottom))


def _boxes_valid(above: str, below: str) -> bool:
    return all(len(set(above[left : left + 2] + below[left : left + 2])) == 4 for left in (0, 2))


def _columns_valid(grid: str) -> bool:
    return all(len(set(grid[column::4])) == 4 for column in range(4))


@functools.cache
def _holders() -> tuple[dict[str, int], ...]:
    """For every cell and digit, the grids that hold it there, as the set bits of an integer."""
    return tuple(
        {digit: sum(1 << index for index, grid in enumerate(all_grids()) if grid[cell] == digit) for digit in "1234"}
        for cell in range(CELLS)
    )


@functools.lru_cache(maxsize=65536)
def solutions(puzzle: str) -> tuple[str, ...]:
    """Every complete grid that agrees with a puzzle's clues.

    Args:
        puzzle: 16 digits from 0 to 4, 0 = empty.

    Returns:
        The grids, in ascending order.
    """
    left = (1 << len(all_grids())) - 1
    for holders, digit in zip(_holders(), puzzle):
        if digit != "0":
            left &= holders[digit]
    found = []
    while left:
        lowest = left & -left
        found.append(all_grids()[lowest.bit_length() - 1])
        left ^= lowest
    return tuple(found)
