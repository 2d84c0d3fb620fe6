import dataclasses
import io
from typing import Any

import pytest
import torch
from torch import Tensor

from stabledrl.rows import Rows
from stabledrl.types import (
    Completions,
    Corruption,
    LikelihoodEstimate,
    RolloutBatch,
    Sequences,
    UpdateTotals,
    combine_metrics,
)

N, P, C, K, V = 5, 3, 4, 2, 6
NO_ROWS = torch.zeros(0, dtype=torch.long)


def completions() -> Completions:
    return Completions(
        token_ids=torch.randint(0, V, (N, C)),
        completion_mask=torch.rand(N, C) < 0.5,
        step_map=torch.randint(-1, C, (N, C)),
    )


def sequences() -> Sequences:
    return Sequences.join(
        torch.randint(0, V, (N, P)), torch.rand(N, P) < 0.5, completions(), torch.randint(0, 1 << 60, (N,))
    )


def estimate(**optional: Tensor) -> LikelihoodEstimate:
    return LikelihoodEstimate(
        elbo=torch.randn(N, requires_grad=True) * 1,
        token_elbo=torch.randn(N, C),
        token_log_probs=torch.randn(N, K, C),
        scored=torch.rand(N, K, C) < 0.5,
        **optional,
    )


def rollouts(reference: LikelihoodEstimate | None = None) -> RolloutBatch:
    return RolloutBatch(
        sequences=sequences(),
        group_index=torch.arange(N) // 2,
        rewards=torch.tensor([1.0, float("nan"), 0.0, 0.5, 1.0]),
        graded=torch.tensor([True, False, True, True, True]),
        advantages=torch.randn(N),
        old=estimate(eubo=torch.randn(N)),
        totals=UpdateTotals(rows=20, groups=10, tokens=77),
        reference=reference,
    )


RECORDS: dict[str, Any] = {
    "Sequences": sequences,
    "Completions": completions,
    "Corruption": lambda: Corruption(masked=torch.rand(N, K, P + C) < 0.5, weight=torch.rand(N, K, C)),
    "LikelihoodEstimate": estimate,
    "LikelihoodEstimate with eubo": lambda: estimate(eubo=torch.randn(N)),
    "RolloutBatch": rollouts,
    "RolloutBatch with reference": lambda: rollouts(estimate()),
}


def flat(record: Rows, prefix: str = "") -> dict[str, Any]:
    """Every leaf by dotted name."""
    leaves: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Rows):
            leaves |= flat(value, f"{prefix}{field.name}.")
        else:
            leaves[prefix + field.name] = value
    return leaves


def tensors(record: Rows) -> dict[str, Tensor]:
    return {name: value for name, value in flat(record).items() if isinstance(value, Tensor)}


def assert_same(first: Rows, second: Rows) -> None:
    assert type(first) is type(second)
    ours, theirs = flat(first), flat(second)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, Tensor):
            assert value.dtype == theirs[name].dtype
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=0, equal_nan=True)
        else:
            assert value == theirs[name]


@pytest.fixture(params=list(RECORDS.values()), ids=list(RECORDS))
def record(request: pytest.FixtureRequest) -> Rows:
    return request.param()


def test_every_record_of_rows_is_tested() -> None:
    tested = {type(make()) for make in RECORDS.values()}
    assert tested == set(Rows.__subclasses__())


@pytest.mark.parametrize(
    "rows",
    [slice(1, 3), torch.tensor([4, 0, 0]), torch.tensor([True, False, True, False, False]), NO_ROWS],
    ids=["slice", "indices", "mask", "none"],
)
def test_select_takes_the_rows_of_every_tensor(record: Rows, rows: Tensor | slice) -> None:
    selected = flat(record.select(rows))
    for name, value in flat(record).items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(selected[name], value[rows], rtol=0, atol=0, equal_nan=True)
        else:
            assert selected[name] == value


def test_cat_undoes_select(record: Rows) -> None:
    parts = [record.select(slice(start, end)) for start, end in ((0, 1), (1, 1), (1, 4), (4, 5))]
    assert_same(type(record).cat(parts), record)


def test_cat_keeps_the_order_of_its_parts(record: Rows) -> None:
    order = torch.tensor([3, 4, 0, 1, 2])
    joined = type(record).cat([record.select(slice(3, 5)), record.select(slice(0, 3))])
    assert_same(joined, record.select(order))


def test_to_moves_every_tensor(record: Rows) -> None:
    moved = record.to("meta")
    assert {tensor.device.type for tensor in tensors(moved).values()} == {"meta"}
    assert tensors(moved).keys() == tensors(record).keys()
    assert {tensor.device.type for tensor in tensors(record).values()} == {"cpu"}


def test_detach_cuts_every_tensor(record: Rows) -> None:
    detached = record.detach()
    assert_same(detached, record)
    assert not any(tensor.requires_grad for tensor in tensors(detached).values())


def test_gradient_is_kept_without_detach() -> None:
    assert estimate().select(slice(0, 2)).elbo.requires_grad


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), NO_ROWS], ids=["all", "one", "none"])
def test_state_dict_survives_a_safe_load(record: Rows, rows: Tensor | slice) -> None:
    kept = record.select(rows).detach()
    buffer = io.BytesIO()
    torch.save(kept.state_dict(), buffer)
    buffer.seek(0)
    assert_same(type(record).from_state_dict(torch.load(buffer, weights_only=True)), kept)


def test_state_dict_holds_nothing_but_plain_values(record: Rows) -> None:
    def check(value: Any) -> None:
        assert isinstance(value, dict | Tensor | int | float | None)
        for below in value.values() if isinstance(value, dict) else ():
            check(below)

    check(record.state_dict())


def test_state_of_another_record_is_refused() -> None:
    with pytest.raises(KeyError, match="token_ids"):
        Corruption.from_state_dict(completions().state_dict())
    with pytest.raises(TypeError, match="weight"):
        Corruption.from_state_dict({"masked": torch.zeros(N, K, C)})


def test_records_are_frozen(record: Rows) -> None:
    name = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, name, None)


def test_estimate_with_logits_is_not_sliced_but_saved_and_moved() -> None:
    kept = estimate(logits=torch.randn(7, V)).detach()
    with pytest.raises(NotImplementedError, match="logits"):
        kept.select(slice(0, 1))
    assert_same(LikelihoodEstimate.from_state_dict(kept.state_dict()), kept)
    assert kept.to("meta").logits is not None


def test_joined_logits_stay_in_row_major_order() -> None:
    first, second = estimate(logits=torch.randn(7, V)), estimate(logits=torch.randn(3, V))
    joined = LikelihoodEstimate.cat([first, second]).logits
    assert first.logits is not None
    assert second.logits is not None
    assert joined is not None
    assert torch.equal(joined, torch.cat([first.logits, second.logits]))


def test_totals_are_those_of_the_update_not_of_the_part() -> None:
    batch = rollouts()
    assert batch.select(slice(0, 2)).totals == batch.totals
    assert len(batch.select(slice(0, 2))) == 2


def test_sequences_know_prompt_and_completion() -> None:
    made = completions()
    prompt, prompt_mask = torch.randint(0, V, (N, P)), torch.rand(N, P) < 0.5
    joined = Sequences.join(prompt, prompt_mask, made, torch.arange(N))
    assert joined.prompt_length == P
    assert torch.equal(joined.completion_ids, made.token_ids)
    assert torch.equal(joined.token_ids[:, :P], prompt)
    assert torch.equal(joined.lengths, made.completion_mask.sum(1))
    # Positions after the end are attended; the prompt's padding is not.
    assert torch.equal(joined.attention_mask[:, :P], prompt_mask)
    assert joined.attention_mask[:, P:].all()


def test_metrics_are_averaged_and_maxima_maximised() -> None:
    parts = [
        {"loss": torch.tensor(1.0), "ratio_max": torch.tensor(5.0)},
        {"loss": torch.tensor(4.0), "ratio_max": torch.tensor(-2.0)},
        {"loss": torch.tensor(1.0), "ratio_max": torch.tensor(3.0)},
    ]
    combined = combine_metrics(parts)
    assert {name: value.item() for name, value in combined.items()} == {"loss": 2.0, "ratio_max": 5.0}
    assert all(value.ndim == 0 for value in combined.values())


@pytest.mark.parametrize("name", ["loss", "ratio_max"])
def test_metric_that_is_not_a_number_is_not_hidden(name: str) -> None:
    parts = [{name: torch.tensor(float("nan"))}, {name: torch.tensor(1.0)}]
    assert combine_metrics(parts)[name].isnan()


def test_metrics_of_one_part_are_its_own() -> None:
    part = {"loss": torch.tensor(1.5), "ratio_max": torch.tensor(2.5)}
    assert combine_metrics([part]) == part
