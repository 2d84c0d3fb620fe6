from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from stabledrl.backbones import NewPolicy, Policy
from stabledrl.data.demonstrations import DemonstrationDataModule, DemonstrationLoader, encode_demonstrations
from stabledrl.errors import UserInputError
from stabledrl.processes import Processes
from stabledrl.protocols import Split, Task

ROWS, BATCH, LENGTH = 50, 16, 4


@pytest.fixture(scope="module")
def policy() -> Policy:
    return NewPolicy(characters="0123456789=", hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8).build()


def text(policy: Policy, ids: Tensor, mask: Tensor) -> str:
    return str(policy.tokenizer.decode(ids[mask].tolist()))


class Numbers(Task):
    name = "numbers"
    rewards = []
    reward_weights = []

    def __init__(self, size: int = ROWS, columns: tuple[str, ...] = ("completion", "weak_completion")) -> None:
        self.size = size
        self.columns = columns

    def rows(self, split: Split) -> Sequence[Mapping[str, Any]]:
        texts = {"completion": "1{}", "weak_completion": "0{}"}
        return [
            {"prompt": f"{row}=", **{column: texts[column].format(row) for column in self.columns}}
            for row in range(self.size)
        ]


def loader(
    policy: Policy, *, batch_size: int = BATCH, seed: int = 0, weak_from: int | None = None, share: float = 0.0
) -> DemonstrationLoader:
    rows = Numbers().rows("train")
    encoded = {
        column: encode_demonstrations(rows, column, policy.tokenizer, policy.vocabulary, LENGTH)
        for column in ("completion", "weak_completion")
    }
    return DemonstrationLoader(encoded, batch_size, seed, weak_from, share)


def take(source: DemonstrationLoader, count: int) -> list[dict[str, Tensor]]:
    """So many batches, over as many epochs as that needs."""
    batches: list[dict[str, Tensor]] = []
    while len(batches) < count:
        for batch in source:
            batches.append(batch)
            if len(batches) == count:
                break
    return batches


def assert_equal(first: Sequence[dict[str, Tensor]], second: Sequence[dict[str, Tensor]]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_batch_depends_on_its_number_and_the_seed_alone(policy: Policy) -> None:
    assert_equal(take(loader(policy, seed=3), 7), take(loader(policy, seed=3), 7))
    first, other = take(loader(policy, seed=3), 2), take(loader(policy, seed=4), 1)
    assert not torch.equal(first[0]["prompt_id"], other[0]["prompt_id"])
    assert not torch.equal(first[0]["prompt_id"], first[1]["prompt_id"])


def test_global_random_state_is_neither_read_nor_moved(policy: Policy) -> None:
    before = torch.get_rng_state()
    first = take(loader(policy, weak_from=0, share=0.5), 2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(55)
    assert_equal(take(loader(policy, weak_from=0, share=0.5), 2), first)


def test_row_does_not_depend_on_the_batch_size(policy: Policy) -> None:
    small, large = (take(loader(policy, batch_size=size, weak_from=0, share=0.5), 1)[0] for size in (3, 20))
    for name in set(small) - {"step"}:
        assert torch.equal(small[name], large[name][:3])


@pytest.mark.parametrize("position", range(8))
def test_resumed_loader_goes_on_where_it_stopped(policy: Policy, position: int) -> None:
    whole = take(loader(policy, weak_from=2, share=0.5), 9)
    stopped = loader(policy, weak_from=2, share=0.5)
    take(stopped, position)
    resumed = loader(policy, weak_from=2, share=0.5)
    resumed.load_state_dict(stopped.state_dict())
    assert stopped.state_dict() == {"step": position}
    assert_equal(take(resumed, 9 - position), whole[position:])


def test_epoch_ends_where_its_length_says(policy: Policy) -> None:
    source = loader(policy)
    assert len(source) == ROWS // BATCH
    assert [len(list(source)) for _ in range(3)] == [len(source)] * 3
    resumed = loader(policy)
    resumed.load_state_dict({"step": 4})
    assert [len(list(resumed)) for _ in range(2)] == [2, 3]


def test_batch_larger_than_the_data_makes_one_step_an_epoch(policy: Policy) -> None:
    source = loader(policy, batch_size=4 * ROWS)
    assert len(source) == 1
    assert next(iter(source))["token_ids"].shape[0] == 4 * ROWS


def test_rows_are_shown_equally_often(policy: Policy) -> None:
    batches = take(loader(policy, batch_size=500), 20)
    counts = torch.cat([batch["prompt_id"] for batch in batches]).bincount(minlength=ROWS).double()
    chi_square = ((counts - 200) ** 2 / 200).sum().item()
    assert abs(chi_square - 49) < 4 * (2 * 49) ** 0.5


def test_row_keeps_prompt_and_completion_together(policy: Policy) -> None:
    for batch in take(loader(policy, weak_from=1, share=0.5), 4):
        width = batch["token_ids"].shape[1] - LENGTH
        for row, prompt_id in enumerate(batch["prompt_id"].tolist()):
            ids = batch["token_ids"][row]
            prompt = text(policy, ids[:width], batch["attention_mask"][row, :width])
            completion = text(policy, ids[width:], batch["completion_mask"][row])
            assert prompt == f"{prompt_id}="
            assert completion in (f"1{prompt_id}<|end|>", f"0{prompt_id}<|end|>")


def weak_rows(policy: Policy, batch: dict[str, Tensor]) -> Tensor:
    width = batch["token_ids"].shape[1] - LENGTH
    return batch["token_ids"][:, width] == torch.tensor(policy.tokenizer.convert_tokens_to_ids("0"))


@pytest.mark.parametrize("start", [0, 1, 3])
def test_weak_demonstrations_begin_at_their_step(policy: Policy, start: int) -> None:
    for step, batch in enumerate(take(loader(policy, weak_from=start, share=0.5), 6)):
        assert batch["step"].item() == step
        assert bool(weak_rows(policy, batch).any()) == (step >= start)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.65, 1.0])
def test_weak_share_is_respected(policy: Policy, share: float) -> None:
    batches = take(loader(policy, batch_size=500, weak_from=0, share=share), 10)
    shown = torch.cat([weak_rows(policy, batch) for batch in batches]).double().mean().item()
    assert shown == pytest.approx(share, abs=4 * (share * (1 - share) / 5000) ** 0.5)


def test_choice_of_weak_rows_does_not_depend_on_the_row_shown(policy: Policy) -> None:
    batches = take(loader(policy, batch_size=500, weak_from=0, share=0.5), 20)
    weak = torch.cat([weak_rows(policy, batch) for batch in batches]).double()
    shown = torch.cat([batch["prompt_id"] for batch in batches]).double()
    assert abs(torch.corrcoef(torch.stack([weak, shown]))[0, 1].item()) < 4 / 10_000**0.5


def test_weak_steps_show_the_same_prompts_in_the_same_order(policy: Policy) -> None:
    strong, mixed = take(loader(policy), 3), take(loader(policy, weak_from=0, share=0.5), 3)
    assert all(torch.equal(one["prompt_id"], other["prompt_id"]) for one, other in zip(strong, mixed))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": 0}, "batch_size 0"),
        ({"completion_length": 0}, "completion_length 0"),
        ({"weak_share": 1.5, "weak_from_step": 0}, "weak_share 1.5"),
        ({"weak_share": -0.1, "weak_from_step": 0}, "weak_share -0.1"),
        ({"weak_share": float("nan"), "weak_from_step": 0}, "weak_share nan"),
        ({"weak_from_step": -1}, "weak_from_step -1"),
        ({"weak_share": 0.5}, "weak_share 0.5 has no effect"),
    ],
)
def test_value_out_of_range_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        DemonstrationDataModule(**{"task": Numbers(), "completion_length": LENGTH, **values})


class Holder(LightningModule):
    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.tokenizer, self.vocabulary = policy.tokenizer, policy.vocabulary


def attached(policy: Policy, task: Task, **options: Any) -> DemonstrationDataModule:
    data = DemonstrationDataModule(task, LENGTH, batch_size=BATCH, **options)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.strategy.connect(Holder(policy))
    data.trainer = trainer
    return data


def test_data_module_hands_its_settings_on(policy: Policy) -> None:
    data = attached(policy, Numbers(), weak_from_step=1, weak_share=0.5, seed=9)
    assert_equal(take(data.train_dataloader(), 4), take(loader(policy, seed=9, weak_from=1, share=0.5), 4))


def test_task_without_weak_completions_will_do_where_none_is_asked_for(policy: Policy) -> None:
    task = Numbers(columns=("completion",))
    assert len(take(attached(policy, task).train_dataloader(), 2)) == 2
    with pytest.raises(UserInputError, match=r"no column 'weak_completion'.*\['completion', 'prompt'\]"):
        attached(policy, task, weak_from_step=0, weak_share=0.5).train_dataloader()


def test_task_without_demonstrations_is_refused(policy: Policy) -> None:
    with pytest.raises(UserInputError, match="task 'numbers' has no column 'completion'"):
        attached(policy, Numbers(columns=())).train_dataloader()


def test_task_without_rows_is_refused(policy: Policy) -> None:
    with pytest.raises(UserInputError, match="task 'numbers' has no training rows"):
        attached(policy, Numbers(size=0)).train_dataloader()


@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_processes_share_a_batch_in_order_and_resume_with_another_number(policy: Policy, count: int) -> None:
    rows = Numbers().rows("train")
    encoded = {
        column: encode_demonstrations(rows, column, policy.tokenizer, policy.vocabulary, LENGTH)
        for column in ("completion", "weak_completion")
    }
    shares = [
        DemonstrationLoader(encoded, BATCH, 0, 2, 0.5, Processes(rank=rank, count=count).share(BATCH))
        for rank in range(count)
    ]
    whole = DemonstrationLoader(encoded, BATCH, 0, 2, 0.5)
    take(shares[-1], 1)
    for source in (whole, *shares[:-1]):
        source.load_state_dict(shares[-1].state_dict())
    parts = [take(source, 5) for source in shares]
    for step, expected in enumerate(take(whole, 5)):
        for name, tensor in expected.items():
            found = [part[step][name] for part in parts]
            assert torch.equal(found[0] if name == "step" else torch.cat(found), tensor), name


@pytest.mark.parametrize(("count", "message"), [(2, None), (3, "batch_size 16 cannot be shared evenly by 3 processes")])
def test_a_batch_that_does_not_go_round_is_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, count: int, message: str | None
) -> None:
    monkeypatch.setattr(Processes, "of_run", classmethod(lambda cls: Processes(count=count)))
    module = DemonstrationDataModule(Numbers(), LENGTH, batch_size=16)
    if message is None:
        module.setup("fit")
    else:
        with pytest.raises(UserInputError, match=f"{message}; use a multiple of {count}"):
            module.setup("fit")
