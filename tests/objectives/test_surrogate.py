import pytest
import torch
from tests.objectives.batches import estimate

from stabledrl.objectives.surrogate import elbo, sandwich


@pytest.mark.parametrize("omega", [0.0, 0.3, 1.0])
def test_sandwich_takes_the_lower_bound_where_positive_and_mixes_where_not(omega):
    lower = torch.tensor([-3.0, -3.0, -3.0]).requires_grad_()
    upper = torch.tensor([-1.0, -1.0, -1.0]).requires_grad_()
    result = sandwich(estimate(lower, upper), torch.tensor([0.5, 0.0, -0.5]), omega)
    mixed = -3.0 + 2 * omega
    torch.testing.assert_close(result, torch.tensor([-3.0, mixed, mixed]))
    result.sum().backward()
    torch.testing.assert_close(lower.grad, torch.tensor([1.0, 1 - omega, 1 - omega]))
    torch.testing.assert_close(upper.grad, torch.tensor([0.0, omega, omega]))


def test_plain_elbo_is_the_lower_bound_for_every_row():
    lower = torch.tensor([-3.0, -2.0])
    assert torch.equal(elbo(estimate(lower)), lower)
