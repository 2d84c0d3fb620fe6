"""Lays out TensorBoard's Custom Scalars tab, so that a run is read from one page."""

from collections.abc import Mapping

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

LAYOUT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "The instability loop": {
        "1 noise: spread of the log-ratios": ("train/log_ratio_std", "train/log_ratio_max"),
        "1 noise: spread of the ratios before any clip": ("train/ratio_mean", "train/ratio_std", "train/ratio_max"),
        "1 noise: kurtosis of the ratios": ("train/ratio_kurtosis",),
        "2 spike: gradient norm": ("train/grad_norm", "train/grad_norm_clipped"),
        "2 spike: counted": ("train/spikes", "train/nonfinite_updates", "train/skipped_updates"),
        "3 drift: KL to the start": ("train/drift_kl",),
        "4 collapse: reward": ("rollout/reward_mean", "train/reward_running_mean"),
        "4 collapse: alarms": ("train/collapse_alarms", "train/rollbacks"),
    },
    "Learning": {
        "reward": ("rollout/reward_mean", "rollout/reward_std"),
        "accuracy, sampled and held out": ("rollout/accuracy", "val/.+/accuracy"),
        "groups that teach nothing": ("rollout/zero_variance_groups", "rollout/identical_groups"),
        "completion length": ("rollout/completion_length",),
        "loss": ("train/loss", "train/kl_reference"),
    },
    "Importance ratios": {
        "clipped": ("train/clip_fraction_low", "train/clip_fraction_high"),
        "effective sample size": ("train/effective_sample_size",),
    },
    "Speed": {"tokens per second": ("rollout/tokens_per_second",)},
}
"""Page -> chart -> tags (regular expressions)."""


class Dashboard(Callback):
    """Writes the layout into the run of every TensorBoard logger; other loggers lay out their own pages.

    The first page follows the loop that collapses a run: noisy ratios, gradient spikes, drift, noisier ratios.
    `train/drift_kl` is there with a `PolicyDriftMonitor` only, ratio curves with objectives that have a ratio.

    Example:
        >>> dashboard = Dashboard()
    """

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        layout = {
            page: {chart: ["Multiline", list(tags)] for chart, tags in charts.items()}
            for page, charts in LAYOUT.items()
        }
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_custom_scalars(layout)
