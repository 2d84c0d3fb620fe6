"""What the stability study compares: methods, settings, and the runs of each part of it.

A run is the quickstart with two layers on top, a setting's and a method's. Settings follow the regimes in which methods
were found to separate, and one in which they were not; all start from the shipped model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Layer = dict[str, Any]

LIKELIHOOD: Layer = {
    "class_path": "MonteCarloElbo",
    "init_args": {
        "draws": 2,
        "masking": "complementary",
        "share_masks": False,
        "reduction": "length_normalized",
        "eubo_beta": None,
        "block_size": 16,
    },
}


def likelihood(**options: Any) -> Layer:
    return {"class_path": "MonteCarloElbo", "init_args": {**LIKELIHOOD["init_args"], **options}}


def noise(**options: Any) -> list[Layer]:
    defaults = {"law": "gaussian", "mean": 0.0, "scale": 3.0, "share": 1.0, "shared_by_group": False}
    return [{"class_path": "ExplodingWeightStress", "init_args": {**defaults, **options}}]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A regime.

    Attributes:
        what: One line for tables.
        likelihood: Options of the estimate, for methods that have none of their own.
        stress: The noise on the ratios; empty for none.
        clip: Lightning's gradient clipping by norm; None for none.
        optimizer: Class path.
        lr: Learning rate.
        decay: `constant` or `linear`.
        steps: Optimizer steps, two a rollout.
    """

    what: str
    likelihood: Layer
    stress: tuple[Layer, ...] = ()
    clip: float | None = 1.0
    optimizer: str = "torch.optim.AdamW"
    lr: float = 1e-4
    decay: str = "constant"
    steps: int = 100

    def layer(self) -> Layer:
        adamw = self.optimizer.endswith("AdamW")
        return {
            "model": {
                "init_args": {
                    "likelihood": likelihood(**self.likelihood),
                    "optimizer": {
                        "class_path": self.optimizer,
                        "init_args": {"lr": self.lr, **({"betas": [0.9, 0.99], "weight_decay": 0.01} if adamw else {})},
                    },
                    "lr_scheduler": {
                        "class_path": "WarmupDecay",
                        "init_args": {
                            "total_steps": self.steps,
                            "warmup_steps": 5,
                            "final_share": 0.05,
                            "shape": self.decay,
                        },
                    },
                    # Two tokens a step, as the field evaluates: half the time of one, and the same picture.
                    "sampler": {
                        "class_path": "SemiAutoregressiveSampler",
                        "init_args": {"completion_length": 16, "block_size": 16, "denoising_steps": 8},
                    },
                }
            },
            "trainer": {
                "enable_progress_bar": False,
                "max_steps": self.steps,
                "gradient_clip_val": self.clip,
                "callbacks": [{"class_path": "PolicyDriftMonitor"}, *self.stress],
            },
            "evaluation": {"every_n_steps": None},
            "checkpoint": {"every_n_train_steps": self.steps},
            # Broken gradients are skipped and counted, which protects a method; no run is ended for them.
            "gradient_spikes": {"stop_after_nonfinite": None},
        }


STRESS: Layer = {"share_masks": True}
SUMMED: Layer = {"masking": "uniform", "reduction": "sum"}
GROUP_NOISE = tuple(noise(mean=-4.5, shared_by_group=True))

SETTINGS = {
    "stress": Setting(
        what="N(0, 3²) on every log-ratio, length-normalised, shared masks, gradient clip 1",
        likelihood=STRESS,
        stress=tuple(noise()),
    ),
    "stress_unclipped": Setting(
        what="the same without gradient clip", likelihood=STRESS, stress=tuple(noise()), clip=None
    ),
    "stress_sgd": Setting(
        what="the same with SGD",
        likelihood=STRESS,
        stress=tuple(noise()),
        optimizer="torch.optim.SGD",
        lr=3e-3,
    ),
    "summed": Setting(
        what="no injected noise: summed ELBO, independent masks, no gradient clip", likelihood=SUMMED, clip=None
    ),
    "summed_clipped": Setting(what="the same with gradient clip 1", likelihood=SUMMED),
    "summed_sgd": Setting(
        what="the same with SGD and gradient clip 1",
        likelihood=SUMMED,
        optimizer="torch.optim.SGD",
        lr=3e-3,
    ),
    "well_behaved": Setting(
        what="length-normalised ELBO, independent masks, gradient clip 1", likelihood={"masking": "uniform"}
    ),
    "group_noise": Setting(
        what="one draw of N(-4.5, 3²) for all of a group's log-ratios, AdamW 2e-4 decayed",
        likelihood=STRESS,
        stress=GROUP_NOISE,
        lr=2e-4,
        decay="linear",
    ),
    "group_noise_sgd": Setting(
        what="the same with SGD 3e-3 decayed",
        likelihood=STRESS,
        stress=GROUP_NOISE,
        optimizer="torch.optim.SGD",
        lr=3e-3,
        decay="linear",
    ),
    # The rate falls as in the method's release, linearly over the run.
    "long_stress": Setting(
        what="stress for 1000 steps, rate decayed linearly",
        likelihood=STRESS,
        stress=tuple(noise()),
        decay="linear",
        steps=1000,
    ),
    "long_stress_constant": Setting(
        what="stress for 1000 steps at a constant rate", likelihood=STRESS, stress=tuple(noise()), steps=1000
    ),
    "long_summed": Setting(
        what="summed for 1000 steps, rate decayed linearly", likelihood=SUMMED, clip=None, decay="linear", steps=1000
    ),
}


def stabledrl(*, eps: float = 0.2, clip: bool = True, self_normalize: bool = True) -> Layer:
    options = {
        "eps_low": eps,
        "eps_high": eps,
        "surrogate": "elbo",
        "omega": 0.5,
        "clip": clip,
        "self_normalize": self_normalize,
    }
    return {"model": {"init_args": {"objective": {"class_path": "StableDRL", "init_args": options}}}}


GRPO: Layer = {
    "model": {"init_args": {"objective": {"class_path": "GRPO", "init_args": {"eps_low": 0.2, "eps_high": 0.2}}}}
}

PUBLISHED = {
    "ESPO": "espo",
    "GDPO": "gdpo",
    "coupled-GRPO": "coupled_grpo",
    "diffu-GRPO": "diffu_grpo",
    "SPG": "spg",
    "wd1": "wd1",
    "DMPO": "dmpo",
}
"""Methods with an estimate of their own: as published, `configs/objective/<name>.yaml`."""

WITHOUT_RATIO = {"SPG", "wd1", "DMPO"}
"""The stress test has nothing to inflate there: they run beside it, without noise."""

METHODS: dict[str, Layer] = {
    "StableDRL": stabledrl(),
    "clip only": stabledrl(self_normalize=False),
    "self-normalisation only": stabledrl(clip=False),
    "GRPO": GRPO,
    **{f"StableDRL, eps {eps:g}": stabledrl(eps=eps) for eps in (1.0, 5.0, 100.0)},
    **{f"clip only, eps {eps:g}": stabledrl(eps=eps, self_normalize=False) for eps in (1.0, 5.0, 100.0)},
}


@dataclass(frozen=True)
class Run:
    """One training run of the study."""

    part: str
    setting: str
    method: str
    seed: int


ONE_EACH = ("StableDRL", "clip only", "self-normalisation only", "GRPO")
EPS_SWEEP = ("StableDRL", "clip only", *(name for name in METHODS if "eps" in name))

PARTS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "core": (("stress", ONE_EACH), ("summed", ONE_EACH), ("well_behaved", ONE_EACH)),
    "self_normalisation": (
        ("group_noise", (*EPS_SWEEP, "GRPO")),
        ("group_noise_sgd", ("StableDRL, eps 5", "clip only, eps 5")),
    ),
    "long": (("long_stress", ("StableDRL", "GRPO")), ("long_summed", ("StableDRL", "GRPO"))),
    "long_constant": (("long_stress_constant", ("StableDRL",)),),
    "methods": (("stress", tuple(PUBLISHED)), ("well_behaved", tuple(PUBLISHED))),
    "eps": (("stress", tuple(name for name in METHODS if "eps" in name)),),
    "optimizer": (
        ("stress_unclipped", ("StableDRL", "GRPO")),
        ("stress_sgd", ("StableDRL", "GRPO")),
        ("summed_clipped", ("StableDRL", "GRPO")),
        ("summed_sgd", ("StableDRL", "GRPO")),
    ),
}
"""Part -> (setting, methods) pairs, in the order in which they are run."""


FEWER_SEEDS = {"long": 2, "long_constant": 1}


def runs_of(parts: list[str], seeds: list[int]) -> Iterator[Run]:
    """Every run of the given parts; long ones have the first seeds only."""
    for part in parts:
        for seed in seeds[: FEWER_SEEDS.get(part)]:
            for setting, methods in PARTS[part]:
                yield from (Run(part, setting, method, seed) for method in methods)
