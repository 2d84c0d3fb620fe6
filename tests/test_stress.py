"""The noise of the stress test: its law, its keys, and what it leaves alone."""

from dataclasses import replace

import pytest
import torch
from tests.objectives.batches import ToyPolicy, rollouts

from stabledrl.errors import UserInputError
from stabledrl.objectives import GRPO, StableDRL
from stabledrl.protocols import GroupCoupledObjective, Objective
from stabledrl.stress import LogRatioNoise, StressedObjective, stress
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch, UpdateTotals

MANY = 20_000


def many(groups: int = MANY) -> RolloutBatch:
    return rollouts(torch.zeros(MANY), torch.zeros(MANY), torch.arange(MANY) % groups)


class NoRatio(Objective):
    needs = frozenset({"elbo"})
    uses_ratio = False

    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: torch.Tensor | None = None
    ) -> ObjectiveOutput:
        return ObjectiveOutput(loss=current.elbo.sum(), metrics={})


def test_gaussian_noise_has_the_stated_moments() -> None:
    found = LogRatioNoise(mean=-4.5, scale=3.0).draw(many(), 0).double()
    z = (found + 4.5) / 3
    assert z.mean().item() == pytest.approx(0, abs=0.03)
    assert z.std().item() == pytest.approx(1, abs=0.03)
    assert z.pow(4).mean().item() == pytest.approx(3, abs=0.3)


@pytest.mark.parametrize("degrees", [1, 2, 5])
def test_student_noise_has_the_stated_quantiles(degrees: int) -> None:
    found = LogRatioNoise(law="student_t", scale=2.0, degrees_of_freedom=degrees).draw(many(), 0).double() / 2
    reference = torch.distributions.StudentT(float(degrees)).sample((400_000,)).double()
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    tolerance = 0.05 * reference.quantile(levels).abs() + 0.05
    assert (found.quantile(levels) - reference.quantile(levels)).abs().lt(tolerance).all()


@pytest.mark.parametrize("shared", [True, False])
def test_share_is_the_part_of_rows_or_groups_that_get_noise(shared: bool) -> None:
    found = LogRatioNoise(mean=5.0, share=0.25, shared_by_group=shared).draw(many(), 3)
    assert (found != 0).float().mean().item() == pytest.approx(0.25, abs=0.015)


def test_shared_noise_is_one_number_a_group_and_independent_noise_is_not() -> None:
    batch = many(groups=MANY // 8)
    shared = LogRatioNoise(shared_by_group=True).draw(batch, 0)
    of_groups = shared.new_zeros(MANY // 8).scatter(0, batch.group_index, shared)
    assert torch.equal(shared, of_groups[batch.group_index])
    assert len(shared.unique()) > 0.99 * MANY / 8
    assert len(LogRatioNoise().draw(batch, 0).unique()) > 0.99 * MANY


@pytest.mark.parametrize("shared", [True, False])
def test_a_rows_noise_depends_on_its_key_step_and_seed_alone(shared: bool) -> None:
    noise, batch = LogRatioNoise(shared_by_group=shared), many(groups=50)
    whole = noise.draw(batch, 7)
    order = torch.randperm(MANY)[:100]
    assert torch.equal(noise.draw(batch.select(order), 7), whole[order])
    assert not torch.equal(noise.draw(batch, 8), whole)
    assert not torch.equal(replace(noise, seed=1).draw(batch, 7), whole)


@pytest.mark.parametrize("objective", [StableDRL(surrogate="elbo"), GRPO()])
def test_the_objective_sees_log_ratios_plus_noise_and_everything_else_as_it_is(objective: Objective) -> None:
    policy = ToyPolicy(8)
    batch = rollouts(policy().elbo.detach(), torch.randn(8).double(), torch.arange(8) // 4)
    noise = LogRatioNoise(scale=0.5)
    stressed = stress(objective, noise, lambda: 4)
    seen = stressed.stressed(batch)
    torch.testing.assert_close(batch.old.elbo - seen.old.elbo, noise.draw(batch, 4).double())
    torch.testing.assert_close(batch.old.token_elbo - seen.old.token_elbo, noise.draw(batch, 4).double()[:, None])
    torch.testing.assert_close(
        batch.old.token_log_probs - seen.old.token_log_probs, noise.draw(batch, 4).double()[:, None, None]
    )
    assert torch.equal(seen.rewards, batch.rewards)
    assert torch.equal(seen.advantages, batch.advantages)
    expected = objective(policy(), replace(batch, old=seen.old))
    found = stressed(policy(), batch)
    assert torch.equal(found.loss, expected.loss)
    assert torch.equal(policy.gradient(found.loss), policy.gradient(expected.loss))


def test_normalisers_see_the_same_noise_so_that_split_groups_give_the_whole_batchs_gradient() -> None:
    policy = ToyPolicy(8)
    batch = rollouts(policy().elbo.detach() - 0.1, torch.randn(8).double(), torch.arange(8) // 4)
    batch = replace(batch, totals=UpdateTotals(rows=8, groups=2, tokens=8))
    stressed = stress(StableDRL(eps_high=50.0, surrogate="elbo"), LogRatioNoise(), lambda: 2)
    assert isinstance(stressed, GroupCoupledObjective)
    normalizer = stressed.log_normalizers(policy(), batch)
    rows = [slice(start, start + 2) for start in range(0, 8, 2)]
    parts = [stressed(policy().select(r), batch.select(r), group_log_normalizer=normalizer).loss for r in rows]
    whole = stressed(policy(), batch).loss
    torch.testing.assert_close(policy.gradient(sum(parts)), policy.gradient(whole))


def test_steps_before_the_first_one_are_left_alone() -> None:
    step, batch = 0, many()
    stressed = stress(GRPO(), LogRatioNoise(), lambda: step, from_step=5)
    for step, untouched in ((0, True), (4, True), (5, False), (9, False)):  # noqa: B007  # read by the lambda
        assert (stressed.stressed(batch) is batch) == untouched


def test_an_objective_without_ratio_is_refused() -> None:
    with pytest.raises(UserInputError, match="NoRatio uses no importance ratio"):
        stress(NoRatio(), LogRatioNoise(), lambda: 0)


def test_only_group_coupled_objectives_stay_so() -> None:
    assert type(stress(GRPO(), LogRatioNoise(), lambda: 0)) is StressedObjective


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"law": "cauchy"}, "law 'cauchy' is not one of gaussian, student_t"),
        ({"scale": -1.0}, "scale -1.0"),
        ({"scale": float("inf")}, "scale inf"),
        ({"mean": float("nan")}, "mean nan"),
        ({"degrees_of_freedom": 0}, "degrees_of_freedom 0"),
        ({"share": 0.0}, "share 0.0"),
        ({"share": 1.5}, "share 1.5"),
    ],
)
def test_values_out_of_range_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserInputError, match=words):
        LogRatioNoise(**options)  # type: ignore[arg-type]
