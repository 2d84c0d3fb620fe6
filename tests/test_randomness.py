import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stabledrl.randomness import Purpose, fold, row_keys, uniforms

WORD = (1 << 64) - 1
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
ROWS, POSITIONS = 2000, 64
PINNED_KEYS = [7137477797765624320, -4202546026492997713]
PINNED_UNIFORMS = [[0.837659766342307, 0.7810129443639231], [0.9287253099419394, 0.5374215734430906]]


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def python_mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def python_fold(key: int, counter: int) -> int:
    return python_mix((key & WORD) ^ python_mix(((counter + 1) * 0x9E3779B97F4A7C15) & WORD))


def python_uniform(key: int, purpose: int, step: int, position: int) -> float:
    for part in (purpose, step, position):
        key = python_fold(key, part)
    return (key >> 11) / 2**53


def sample(purpose: Purpose = Purpose.TOKEN, step: int = 0) -> Tensor:
    return uniforms(torch.arange(ROWS), purpose, step, POSITIONS)


@pytest.mark.parametrize(
    ("counter", "output"),
    # The first outputs of SplitMix64 with seed 0, as published with the algorithm.
    [(0, 0xE220A8397B1DCDAF), (1, 0x6E789E6AA1B965F4), (2, 0x06C45D188009454F)],
)
def test_mixing_is_splitmix64(counter: int, output: int) -> None:
    # The mixing is a bijection that keeps 0: a fold is 0 exactly where the key is the counter's mixed value.
    assert fold(torch.tensor(signed(output)), counter).item() == 0
    assert fold(torch.tensor(signed(output ^ 1)), counter).item() != 0


@given(key=INT64, counter=INT64)
def test_fold_is_the_integer_arithmetic(key: int, counter: int) -> None:
    assert fold(torch.tensor([key]), counter).item() == signed(python_fold(key, counter))
    assert fold(torch.tensor([key]), torch.tensor([counter])).item() == signed(python_fold(key, counter))


@given(key=INT64, purpose=st.sampled_from(Purpose), step=st.integers(0, 10**9), position=st.integers(0, 10**9))
def test_uniform_is_the_integer_arithmetic(key: int, purpose: Purpose, step: int, position: int) -> None:
    drawn = uniforms(torch.tensor([key]), purpose, step, torch.tensor([position])).item()
    assert drawn == python_uniform(key, purpose, step, position)
    assert 0 <= drawn < 1


@given(parts=st.tuples(*[st.integers(0, 2**62)] * 5))
def test_row_key_is_the_integer_arithmetic(parts: tuple[int, int, int, int, int]) -> None:
    seed, rollout, prompt, index, rollback = parts
    key = 0
    for part in (seed, rollback, rollout, prompt, index):
        key = python_fold(key, part)
    made = row_keys(seed, rollout, torch.tensor([prompt]), torch.tensor([index]), rollback)
    assert made.item() == signed(key)


def test_values_never_change() -> None:
    """A change of these breaks the resumption of every existing run."""
    keys = row_keys(7, 3, torch.tensor([0, 11]), torch.tensor([0, 2]), rollback_count=1)
    assert keys.tolist() == PINNED_KEYS
    drawn = uniforms(keys, Purpose.MASK_RANK, 5, 2)
    assert drawn.tolist() == PINNED_UNIFORMS
    assert [(purpose.name, purpose.value) for purpose in Purpose][:9] == [
        ("TOKEN", 0),
        ("REMASKING", 1),
        ("MASK_COUNT", 2),
        ("MASK_RANK", 3),
        ("MASK_BLOCK", 4),
        ("MASK_CONTEXT", 5),
        ("DATA", 6),
        ("DEMONSTRATION", 7),
        ("STRESS", 8),
    ]


def test_values_lie_in_the_unit_interval_as_float64() -> None:
    drawn = sample()
    assert drawn.dtype == torch.float64
    assert drawn.shape == (ROWS, POSITIONS)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert drawn.unique().numel() == drawn.numel()


@pytest.mark.parametrize("purpose", Purpose)
def test_mean_and_variance_are_those_of_a_uniform(purpose: Purpose) -> None:
    drawn, count = sample(purpose, 3), ROWS * POSITIONS
    assert drawn.mean().item() == pytest.approx(1 / 2, abs=4 / (12 * count) ** 0.5)
    assert drawn.var().item() == pytest.approx(1 / 12, abs=4 / (180 * count) ** 0.5)


@pytest.mark.parametrize("scale", [64, 2**20, 2**47, 2**53], ids=["bits 1-6", "bits 15-20", "bits 42-47", "bits 48-53"])
def test_every_bit_range_is_flat(scale: int) -> None:
    bins = (sample() * scale).long() % 64
    counts = bins.flatten().bincount(minlength=64).double()
    expected = ROWS * POSITIONS / 64
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert abs(chi_square - 63) < 4 * (2 * 63) ** 0.5


@pytest.mark.parametrize("axis", [0, 1], ids=["one row's positions", "one position's rows"])
def test_each_row_and_each_position_is_uniform(axis: int) -> None:
    count = (POSITIONS, ROWS)[axis]
    drawn = sample() if axis == 0 else sample().T
    z = (drawn.mean(dim=1) - 0.5) * (12 * count) ** 0.5
    assert z.abs().max() < 5
    assert z.std().item() == pytest.approx(1, abs=0.3)


NEIGHBOURS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "keys": lambda: (sample()[:-1], sample()[1:]),
    "positions": lambda: (sample()[:, :-1], sample()[:, 1:]),
    "steps": lambda: (sample(step=0), sample(step=1)),
    "position against step": lambda: (sample(step=0)[:, 1:], sample(step=1)[:, :-1]),
    "key against position": lambda: (sample()[:-1, 1:], sample()[1:, :-1]),
    "prompts": lambda: (from_parts(prompt=0), from_parts(prompt=1)),
    "samples": lambda: (from_parts(index=0), from_parts(index=1)),
    "rollouts": lambda: (from_parts(rollout=0), from_parts(rollout=1)),
    "seeds": lambda: (from_parts(seed=0), from_parts(seed=1)),
    "rollbacks": lambda: (from_parts(rollback=0), from_parts(rollback=1)),
    "swapped prompt and sample": lambda: (from_parts(prompt=1), from_parts(index=1)),
    **{
        f"{first.name} and {second.name}": lambda first=first, second=second: (sample(first), sample(second))  # type: ignore[misc]
        for first, second in itertools.pairwise(Purpose)
    },
}


def from_parts(seed: int = 0, rollout: int = 0, prompt: int = 0, index: int = 0, rollback: int = 0) -> Tensor:
    rows = torch.arange(ROWS) * 2  # steps of two, so that neighbours never coincide
    return uniforms(row_keys(seed, rollout, rows + prompt, rows.flip(0) + index, rollback), Purpose.TOKEN, 0, POSITIONS)


@pytest.mark.parametrize("pair", NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
def test_neighbours_are_uncorrelated(pair: Callable[[], tuple[Tensor, Tensor]]) -> None:
    first, second = (part.flatten() for part in pair())
    limit = 4 / first.numel() ** 0.5
    for transform in (lambda x: x, lambda x: (x - 0.5).abs()):
        correlation = torch.corrcoef(torch.stack([transform(first), transform(second)]))[0, 1].item()
        assert abs(correlation) < limit
    assert not (first == second).any()


def test_pairs_of_neighbours_fill_the_square_evenly() -> None:
    drawn = sample()
    cells = (drawn[:, 0::2] * 8).long() * 8 + (drawn[:, 1::2] * 8).long()
    counts = cells.flatten().bincount(minlength=64).double()
    expected = cells.numel() / 64
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert abs(chi_square - 63) < 4 * (2 * 63) ** 0.5


def test_keys_of_a_run_do_not_collide() -> None:
    prompt, index = torch.meshgrid(torch.arange(300), torch.arange(16), indexing="ij")
    keys = [row_keys(seed, rollout, prompt.flatten(), index.flatten()) for seed in (0, 1) for rollout in range(20)]
    assert torch.cat(keys).unique().numel() == 2 * 20 * 300 * 16


@settings(max_examples=30)
@given(keys=st.lists(INT64, min_size=1, max_size=6), positions=st.integers(1, 9), data=st.data())
def test_value_does_not_depend_on_batch_shape_or_order(keys: list[int], positions: int, data: st.DataObject) -> None:
    rows = torch.tensor(keys)
    whole = uniforms(rows, Purpose.TOKEN, 2, positions)
    order = torch.tensor(data.draw(st.permutations(range(len(keys)))))
    assert torch.equal(uniforms(rows[order], Purpose.TOKEN, 2, positions), whole[order])
    for row in range(len(keys)):
        assert torch.equal(uniforms(rows[row : row + 1], Purpose.TOKEN, 2, positions), whole[row : row + 1])
    assert torch.equal(uniforms(rows, Purpose.TOKEN, 2, positions + 5)[:, :positions], whole)


def test_positions_can_be_shared_or_per_row() -> None:
    keys = torch.tensor([5, 6])
    whole = uniforms(keys, Purpose.TOKEN, 0, 10)
    assert torch.equal(uniforms(keys, Purpose.TOKEN, 0, torch.tensor([7, 2, 2])), whole[:, [7, 2, 2]])
    per_row = torch.tensor([[1, 9], [4, 0]])
    assert torch.equal(uniforms(keys, Purpose.TOKEN, 0, per_row), whole.gather(1, per_row))


def test_global_random_state_is_neither_read_nor_moved() -> None:
    before = torch.get_rng_state()
    first = sample()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(sample(), first)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_changes_no_bit() -> None:
    keys = row_keys(1, 2, torch.arange(500), torch.arange(500))
    on_device = uniforms(keys.cuda(), Purpose.TOKEN, 3, 100)
    assert on_device.is_cuda
    assert torch.equal(on_device.cpu(), uniforms(keys, Purpose.TOKEN, 3, 100))
