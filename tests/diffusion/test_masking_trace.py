import pytest
import torch
from tests.diffusion.laws import make_rows
from torch import Tensor

from stabledrl.diffusion import trace
from stabledrl.errors import UserInputError
from stabledrl.types import Corruption, Sequences

PROMPT, WIDTH = 6, 12


def traced_rows(step_map: list[list[int]], *, prompt: int = PROMPT, padding: int = 0, extra: int = 0) -> Sequences:
    """Rows with the given steps per completion token, -1 where none; the prompt has no padding of its own."""
    steps = torch.tensor(step_map)
    steps = torch.cat([steps, torch.full((len(steps), extra), -1)], dim=1)
    rows = make_rows((steps >= 0).sum(dim=1), steps.shape[1], prompt=prompt, padding=padding)
    return Sequences(**{**vars(rows), "step_map": steps})


def looped(step_map: list[int], draws: int, size: int, tail: int) -> tuple[list[list[bool]], list[list[float]]]:
    """The masks and weights of one row, written block by block and view by view."""
    masked = [[False] * len(step_map) for _ in range(draws)]
    weight = [[0.0] * len(step_map) for _ in range(draws)]
    for start in range(-tail, len(step_map), size):
        places = [at for at in range(max(start, 0), min(start + size, len(step_map))) if step_map[at] >= 0]
        steps = sorted({step_map[at] for at in places})
        groups = [[step for order, step in enumerate(steps) if order * draws // len(steps) == j] for j in range(draws)]
        for view, group in enumerate(groups):
            later = [step for other in groups[view:] for step in other]
            for at in places:
                masked[view][at] = step_map[at] in later
                weight[view][at] = float(draws) if step_map[at] in group else 0.0
    return masked, weight


def random_trace(length: int, size: int, tail: int, generator: torch.Generator) -> list[int]:
    """Steps that count over the completion, several tokens a step, some step numbers unused; -1 behind the end."""
    steps = torch.full((WIDTH,), -1)
    for number, start in enumerate(range(-tail, length, size)):
        places = torch.arange(max(start, 0), min(start + size, length))
        steps[places] = number * size + torch.randint(0, size, (len(places),), generator=generator)
    return steps.tolist()


def check(found: Corruption, expected: list[tuple[list[list[bool]], list[list[float]]]]) -> None:
    assert not found.masked[:, :, :-WIDTH].any()
    assert found.masked[:, :, -WIDTH:].tolist() == [masked for masked, _ in expected]
    assert found.weight.tolist() == [weight for _, weight in expected]


@pytest.mark.parametrize("draws", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [1, 3, 4, 12])
def test_views_are_the_states_before_each_group_of_steps_of_a_block(size: int, draws: int) -> None:
    generator, tail = torch.Generator().manual_seed(size), PROMPT % size
    maps = [random_trace(length, size, tail, generator) for length in (12, 12, 11, 7, 2, 1) for _ in range(5)]
    check(trace(traced_rows(maps), draws, 0, size), [looped(steps, draws, size, tail) for steps in maps])


def test_without_blocks_the_steps_of_the_whole_completion_are_grouped() -> None:
    generator = torch.Generator().manual_seed(1)
    maps = [random_trace(length, 4, 0, generator) for length in (12, 9, 4) for _ in range(5)]
    check(trace(traced_rows(maps), 3, 0), [looped(steps, 3, WIDTH, 0) for steps in maps])


@pytest.mark.parametrize("block_size", [None, 4])
@pytest.mark.parametrize("draws", [1, 2, 5])
def test_every_token_is_scored_once_and_the_mean_over_views_is_its_log_probability(
    draws: int, block_size: int | None
) -> None:
    generator = torch.Generator().manual_seed(2)
    rows = traced_rows([random_trace(length, 4, 2, generator) for length in (12, 10, 5, 1)])
    found = trace(rows, draws, 0, block_size)
    assert found.weight.dtype == torch.float32
    assert torch.equal(found.scored(rows).sum(dim=1), rows.completion_mask.long())
    torch.testing.assert_close(found.weight.mean(dim=1), rows.completion_mask.float())


def test_with_a_view_per_step_a_token_sees_exactly_what_was_decided_before_it() -> None:
    steps = [0, 3, 1, 2, 6, 4, 5, 7, 8, 8, 9, 9]
    rows = traced_rows([steps], prompt=4)
    found = trace(rows, 4, 0, 4)
    whole = trace(rows, 10, 0)
    for place, step in enumerate(steps):
        block = range(place // 4 * 4, place // 4 * 4 + 4)
        seen = [at for at in block if not found.masked[0, found.weight[0, :, place].argmax(), 4 + at]]
        assert seen == [at for at in block if steps[at] < step]
        seen = [at for at in range(12) if not whole.masked[0, whole.weight[0, :, place].argmax(), 4 + at]]
        assert seen == [at for at in range(12) if steps[at] < step]


def test_steps_of_one_group_are_scored_in_the_state_before_the_first_of_them() -> None:
    found = trace(traced_rows([[0, 1, 2, 3, 4, -1]], prompt=8), 2, 0, 8)
    assert found.weight[0].gt(0).tolist() == [[True] * 3 + [False] * 3, [False] * 3 + [True, True, False]]
    assert found.masked[0, :, 8:].tolist() == [[True] * 5 + [False], [False] * 3 + [True, True, False]]


def test_views_depend_on_the_row_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    maps = [random_trace(length, 4, 2, generator) for length in (12, 8, 3, 1, 12, 10)]
    rows, order = traced_rows(maps), torch.tensor([4, 1, 5])
    found = trace(rows, 3, 0, 4)
    for same in (
        trace(rows, 3, 7, 4),
        Corruption.cat([trace(rows.select(slice(i, i + 1)), 3, 0, 4) for i in range(6)]),
    ):
        assert torch.equal(same.masked, found.masked)
        assert torch.equal(same.weight, found.weight)
    part = trace(rows.select(order), 3, 0, 4)
    assert torch.equal(part.masked, found.masked[order])
    wide = trace(traced_rows(maps, padding=3, extra=2), 3, 0, 4)
    assert torch.equal(wide.masked[:, :, 3:-2], found.masked)
    assert torch.equal(wide.weight[:, :, :-2], found.weight)
    assert not wide.masked[:, :, -2:].any()


def test_the_numbers_of_steps_do_not_matter_only_their_order_within_a_block() -> None:
    generator = torch.Generator().manual_seed(4)
    rows = traced_rows([random_trace(12, 4, 2, generator) for _ in range(8)])
    block = (torch.arange(WIDTH) + 2) // 4
    found = trace(rows, 3, 0, 4)
    for steps in (rows.step_map - 4 * block, rows.step_map * 1000 + 10**9):  # type: ignore[operator]
        other = trace(Sequences(**{**vars(rows), "step_map": steps}), 3, 0, 4)
        assert torch.equal(other.masked, found.masked)


def test_rows_that_were_not_sampled_are_refused() -> None:
    rows: Sequences = make_rows(torch.tensor([3, 4]), WIDTH)
    with pytest.raises(UserInputError, match=r"masking trace needs the step .* demonstrations"):
        trace(rows, 2, 0, 4)


def test_no_row_is_no_error() -> None:
    empty: Tensor = torch.zeros(0, dtype=torch.int64)
    assert trace(traced_rows([[0, 1]]).select(empty), 2, 0, 4).masked.shape == (0, 2, PROMPT + 2)
