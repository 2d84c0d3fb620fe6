"""A table of what `test` finds: per task and completion length, how often right, how sure, how fast."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from stabledrl.callbacks.sample_writer import write_evaluated
from stabledrl.errors import UserInputError
from stabledrl.evaluation import EvaluatedBatch
from stabledrl.module import DiffusionPolicyModule
from stabledrl.protocols import Sampler, Task
from stabledrl.rewards.scoring import grade_method
from stabledrl.samplers.resizing import resize
from stabledrl.score_table import ScoreRow, to_csv, to_markdown
from stabledrl.scores import majority_at_k, pass_at_k


class EvaluationTable(Callback):
    """Evaluates at several completion lengths in `test`, and with several samples per prompt where asked to.

    The table goes to the console and, as `test_table.md` and `test_table.csv`, to the log directory; every completion
    is a line of `test_samples.jsonl` there. The metric `test/<task>/accuracy` is that of the sampler as configured.

    Args:
        lengths: Completion lengths; null takes the sampler's own. Block size and remasking stay as configured.
        steps_per_token: Denoising steps per token, in (0, 1]; null keeps the sampler's. Usual in the field: 0.5.
        samples_per_prompt: Completions per prompt for pass@k and majority@k, beside the greedy one; 0 leaves them out.
        k: Which k; null takes 1, 2, 4, ... up to `samples_per_prompt`.
        temperature: Sampling temperature of these completions.
        seed: Seed of their draws; null takes Lightning's `seed_everything`, or 0.

    Raises:
        UserInputError: A value is out of range.

    Example:
        >>> table = EvaluationTable(lengths=[128, 256, 512], steps_per_token=0.5, samples_per_prompt=8, k=[1, 8])
    """

    requires_rollouts = True

    def __init__(
        self,
        lengths: list[int] | None = None,
        steps_per_token: float | None = None,
        samples_per_prompt: int = 0,
        k: list[int] | None = None,
        temperature: float = 0.9,
        seed: int | None = None,
    ) -> None:
        if lengths is not None and (not lengths or len(set(lengths)) < len(lengths)):
            raise UserInputError(f"lengths {lengths} must be one or more different numbers, or null for the sampler's")
        if steps_per_token is not None and not 0 < steps_per_token <= 1:
            raise UserInputError(f"steps_per_token {steps_per_token} must be above 0 and at most 1")
        if samples_per_prompt < 0:
            raise UserInputError(f"samples_per_prompt {samples_per_prompt} must be at least 0")
        if not 0 < temperature < math.inf:
            raise UserInputError(f"temperature {temperature} must be finite and above 0: greedy samples are all alike")
        if k is None:
            k = [2**power for power in range(samples_per_prompt.bit_length())]
        if wrong := [own for own in k if not 1 <= own <= samples_per_prompt]:
            raise UserInputError(f"k {wrong[0]} must lie between 1 and samples_per_prompt {samples_per_prompt}")
        self.lengths = lengths
        self.steps_per_token = steps_per_token
        self.samples_per_prompt = samples_per_prompt
        self.k = sorted(set(k))
        self.temperature = temperature
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed
        self._samplers: list[Sampler] = []
        self._tallies: list[dict[str, _Tally]] = []
        self._report = ""

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "test":
            return
        if not isinstance(pl_module, DiffusionPolicyModule):
            raise UserInputError(f"EvaluationTable needs a DiffusionPolicyModule, not a {type(pl_module).__name__}")
        # Here, before the model is loaded: lengths that do not fit the sampler are refused at once.
        self._samplers = list(_samplers(pl_module.sampler, self.lengths, self.steps_per_token))

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DiffusionPolicyModule)
        self._tallies = [{task: _Tally(self.k) for task in pl_module.tasks} for _ in self._samplers]

    @override
    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Mapping[str, Any],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        assert isinstance(pl_module, DiffusionPolicyModule)
        (task,) = set(batch["tasks"])
        for sampler, tallies in zip(self._samplers, self._tallies):
            with trainer.precision_plugin.forward_context():
                # The greedy completions of the configured sampler are there already, and written.
                own = sampler is pl_module.sampler
                greedy = outputs["evaluated"] if own else pl_module.evaluate_batch(batch, sampler)
                sampled = self._sample(pl_module, batch, sampler) if self.samples_per_prompt else None
            if not own:
                write_evaluated(trainer, greedy.samples, sampler)
            if sampled is not None:
                write_evaluated(trainer, sampled.samples, sampler, self.temperature)
            tallies[task].add(greedy, sampled)

    def _sample(self, module: DiffusionPolicyModule, batch: Mapping[str, Any], sampler: Sampler) -> EvaluatedBatch:
        return module.evaluate_batch(
            batch, sampler, samples_per_prompt=self.samples_per_prompt, temperature=self.temperature, seed=self.seed
        )

    @override
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, DiffusionPolicyModule)
        rows = [
            self._row(task, sampler, tallies[name])
            for name, task in pl_module.tasks.items()
            for sampler, tallies in zip(self._samplers, self._tallies)
            if tallies[name].prompts
        ]
        if (log_dir := trainer.log_dir) is None or not trainer.is_global_zero or not rows:
            return
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        table, path = to_markdown(rows), Path(log_dir) / "test_table.md"
        path.write_text(table, encoding="utf-8")
        path.with_suffix(".csv").write_text(to_csv(rows), encoding="utf-8")
        self._report = f"\n{table}\ntable: {path} and .csv"

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # Not at the test's end, where the progress bar and the trainer's own table are still to come.
        if self._report:
            rank_zero_info(self._report)
            self._report = ""

    def _row(self, task: Task, sampler: Sampler, tally: "_Tally") -> ScoreRow:
        prompts, seconds = tally.prompts, tally.seconds
        votes = grade_method(task.rewards[0]) is not None  # A plain function gives a number and no answer.
        return ScoreRow(
            task=task.name,
            completion_length=sampler.completion_length,
            denoising_steps=getattr(sampler, "denoising_steps", None),
            prompts=prompts,
            correct=tally.correct,
            mean_length=tally.tokens / prompts,
            tokens_per_second=tally.tokens / seconds,
            steps_per_second=tally.steps / seconds,
            samples_per_prompt=self.samples_per_prompt,
            temperature=self.temperature if self.samples_per_prompt else None,
            pass_at_k={k: tally.passed[k] / prompts for k in self.k},
            majority_at_k={k: tally.voted[k] / prompts if votes else None for k in self.k},
        )


class _Tally:
    """Sums over the prompts of a task at one completion length."""

    def __init__(self, k: Sequence[int]) -> None:
        self.prompts = self.correct = self.tokens = self.steps = 0
        self.seconds = 0.0
        self.passed = dict.fromkeys(k, 0.0)
        self.voted = dict.fromkeys(k, 0.0)

    def add(self, greedy: EvaluatedBatch, sampled: EvaluatedBatch | None) -> None:
        """Adds a batch: greedy completions, whose speed counts, and groups of sampled ones."""
        self.prompts += len(greedy.samples)
        self.correct += sum(sample.correct is True for sample in greedy.samples)
        self.tokens += sum(sample.length for sample in greedy.samples)
        self.steps += greedy.steps
        self.seconds += greedy.seconds
        for _, samples in groupby(sampled.samples if sampled else (), key=lambda sample: sample.prompt_id):
            group = list(samples)
            answers, correct = [own.answer for own in group], [own.correct is True for own in group]
            for k in self.passed:
                self.passed[k] += pass_at_k(correct, k)
                self.voted[k] += majority_at_k(answers, correct, k)


def _samplers(own: Sampler, lengths: Sequence[int] | None, steps_per_token: float | None) -> Iterator[Sampler]:
    """A sampler per length: the given one itself where nothing differs."""
    if lengths is None and steps_per_token is None:
        yield own
        return
    for length in lengths or [own.completion_length]:
        resized = resize(own, length, steps_per_token)
        sizes = [(one.completion_length, getattr(one, "denoising_steps", None)) for one in (own, resized)]
        yield own if sizes[0] == sizes[1] else resized
