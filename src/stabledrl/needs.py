"""What an objective needs and what estimator and sampler provide."""

from stabledrl.errors import UserInputError
from stabledrl.protocols import LikelihoodEstimator, Objective, Sampler

_PROVIDED_BY = {
    "eubo": "eubo_beta",
    "length_normalized": "reduction: length_normalized",
    "logits": "keep_logits: true",
    "shared_masks": "share_masks: true, or masking: trace",
    "step_map": "a sampler that tells it",
}
"""Options by which an estimator provides what it may lack."""


def check_needs(objective: Objective, likelihood: LikelihoodEstimator, sampler: Sampler) -> None:
    """Refuses an objective whose estimates would lack something.

    Raises:
        UserInputError: Something is needed that is not provided.
    """
    provided = likelihood.provides | sampler.provides
    for asking in (objective, likelihood):
        if missing := asking.needs - provided:
            options = "; ".join(_PROVIDED_BY[need] for need in sorted(missing) if need in _PROVIDED_BY)
            raise UserInputError(
                f"{type(asking).__name__} needs {', '.join(sorted(missing))}, but {type(likelihood).__name__} "
                f"provides {', '.join(sorted(likelihood.provides))} and {type(sampler).__name__} "
                f"{', '.join(sorted(sampler.provides)) or 'nothing'}" + (f"; what would: {options}" if options else "")
            )
