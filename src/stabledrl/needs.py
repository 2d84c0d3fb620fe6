"""What an objective needs and what estimator and sampler provide."""

from stabledrl.errors import UserInputError
from stabledrl.protocols import LikelihoodEstimator, Objective, Sampler


def check_needs(objective: Objective, likelihood: LikelihoodEstimator, sampler: Sampler) -> None:
    """Refuses an objective whose estimates would lack something.

    Raises:
        UserInputError: Something is needed that is not provided.
    """
    provided = likelihood.provides | sampler.provides
    for asking in (objective, likelihood):
        if missing := asking.needs - provided:
            raise UserInputError(
                f"{type(asking).__name__} needs {', '.join(sorted(missing))}, but {type(likelihood).__name__} "
                f"provides {', '.join(sorted(likelihood.provides))} and {type(sampler).__name__} "
                f"{', '.join(sorted(sampler.provides)) or 'nothing'}"
            )
