"""What the Monte-Carlo estimators share: which settings are valid, what they provide, which masks they draw."""

import math
from typing import get_args

from stabledrl.errors import UserInputError
from stabledrl.likelihoods.eubo import Reduction
from stabledrl.protocols import Need


def check_settings(draws: int, block_size: int, reduction: Reduction, eubo_beta: float | None) -> None:
    """Refuses settings that no estimate can be made with.

    Raises:
        UserInputError: A value is out of range.
    """
    for name, value in (("draws", draws), ("block_size", block_size)):
        if not isinstance(value, int) or value < 1:
            raise UserInputError(f"{name} {value!r} is not valid; it must be at least 1")
    if reduction not in get_args(Reduction):
        raise UserInputError(f"reduction {reduction!r} is unknown; use one of {', '.join(get_args(Reduction))}")
    if eubo_beta is not None and not 1 <= eubo_beta < math.inf:
        raise UserInputError(f"eubo_beta {eubo_beta} must be finite and at least 1, or null for no upper bound")


def provided(eubo_beta: float | None, keep_logits: bool, share_masks: bool, reduction: Reduction) -> frozenset[Need]:
    """What the estimates hold."""
    needs: set[Need] = {"elbo", "token_log_probs"}
    if eubo_beta is not None:
        needs.add("eubo")
    if keep_logits:
        needs.add("logits")
    if share_masks:
        needs.add("shared_masks")
    if reduction == "length_normalized":
        needs.add("length_normalized")
    return frozenset(needs)


def mask_step(share_masks: bool, update: int | None) -> int:
    """The counter of an estimate's masks: one for all where they are shared, else one for the old and each update."""
    return 0 if share_masks or update is None else update + 1
