"""Callbacks: one concern a file; all state survives a resume."""

from stabledrl.callbacks.alarm import TrainingStoppedError
from stabledrl.callbacks.dashboard import Dashboard
from stabledrl.callbacks.evaluation_table import EvaluationTable
from stabledrl.callbacks.exploding_weight_stress import ExplodingWeightStress
from stabledrl.callbacks.graceful_stop import GracefulStop
from stabledrl.callbacks.gradient_spike import GradientSpikeMonitor
from stabledrl.callbacks.group_rollout import GroupRollout
from stabledrl.callbacks.policy_drift import PolicyDriftMonitor
from stabledrl.callbacks.progress import StepProgressBar
from stabledrl.callbacks.reward_collapse import RewardCollapseMonitor
from stabledrl.callbacks.run_checkpoint import RunCheckpoint
from stabledrl.callbacks.run_manifest import RunManifest
from stabledrl.callbacks.sample_table import SampleTable
from stabledrl.callbacks.sample_writer import SampleWriter
from stabledrl.callbacks.task_evaluation import TaskEvaluation

__all__ = [
    "Dashboard",
    "EvaluationTable",
    "ExplodingWeightStress",
    "GracefulStop",
    "GradientSpikeMonitor",
    "GroupRollout",
    "PolicyDriftMonitor",
    "RewardCollapseMonitor",
    "RunCheckpoint",
    "RunManifest",
    "SampleTable",
    "SampleWriter",
    "StepProgressBar",
    "TaskEvaluation",
    "TrainingStoppedError",
]
