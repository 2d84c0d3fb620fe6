"""Puzzles of reasoning-gym (Stojanovski et al., arXiv 2505.24760), graded by its own verifiers."""

import difflib
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from typing_extensions import override

from stabledrl.data.rewarding import resolve_rewards
from stabledrl.data.sudoku import PromptStyle
from stabledrl.errors import UserInputError
from stabledrl.grade import Grade
from stabledrl.protocols import RewardFunction, Split, Task
from stabledrl.rewards.answer_text import AnswerFormat, find_answer
from stabledrl.rewards.graded import GradedReward

# An item is drawn from seed + index: far apart, so that no training seed reaches the held-out items.
_HELD_OUT_SEED = 2**31
_SEED_STRIDE = 1_000_003
_MOST_DRAWS = 20
_INSTRUCTION = "{question}\n\nThink step by step, then give the final answer alone between <answer> and </answer>."


class ReasoningGym(Task):
    """Items of one generator. The held-out ones are always the same, and no training item asks what one of them asks.

    Args:
        generator: Name of a generator, such as `chain_sum` or `knights_knaves`.
        options: Its configuration, such as {min_terms: 2, max_terms: 3}.
        train_size: Training items.
        evaluation_size: Held-out items, all distinct.
        prompt_style: `instruction` is a chat that asks for <answer> tags; `compact` is the plain question, answered by
            the bare answer.
        rewards: Instead of the generator's verifier.
        reward_weights: One per reward.
        seed: Seed of the training items.
        name: Names the task in metrics; None takes the generator's name.

    Raises:
        UserInputError: reasoning-gym is not installed, has no such generator, or refuses the options.
    """

    def __init__(
        self,
        generator: str,
        options: dict[str, Any] | None = None,
        *,
        train_size: int = 4000,
        evaluation_size: int = 128,
        prompt_style: PromptStyle = "instruction",
        rewards: list[RewardFunction] | None = None,
        reward_weights: list[float] | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        if train_size < 1 or evaluation_size < 1:
            raise UserInputError(f"train_size {train_size} and evaluation_size {evaluation_size} must be at least 1")
        if not 0 <= seed < 1000:
            raise UserInputError(f"seed {seed} must lie between 0 and 999")
        self.name = name or generator
        self.generator = generator
        self.options = options or {}
        self.sizes = {"train": train_size, "evaluation": evaluation_size}
        self.prompt_style = prompt_style
        self.seed = seed
        verifier = ReasoningGymVerifier(
            generator, self.options, answer_format="bare" if prompt_style == "compact" else "tags"
        )
        self.rewards, self.reward_weights = resolve_rewards(verifier, rewards, reward_weights)
        self._rows: dict[Split, list[dict[str, Any]]] = {}

    @override
    def rows(self, split: Split) -> Sequence[Mapping[str, Any]]:
        if split not in self._rows:
            self._rows[split] = self._draw(split)
        return self._rows[split]

    def _draw(self, split: Split) -> list[dict[str, Any]]:
        held_out = split == "evaluation"
        size = self.sizes[split]
        taken = set() if held_out else {row["question"] for row in self.rows("evaluation")}
        seed = _HELD_OUT_SEED if held_out else self.seed * _SEED_STRIDE
        items = _make(self.generator, {**self.options, "seed": seed, "size": size * _MOST_DRAWS})
        rows: list[dict[str, Any]] = []
        for index in range(size * _MOST_DRAWS):
            item = items[index]
            if item["question"] not in taken:
                rows.append(self._row(item))
                if held_out:
                    taken.add(item["question"])
            if len(rows) == size:
                return rows
        kind = "distinct questions" if held_out else "questions that are not held out"
        raise UserInputError(
            f"{self.generator} gave {len(rows)} {kind} in {size * _MOST_DRAWS}, fewer than the {size} asked for "
            f"{split}; lower the size, or choose options with more questions"
        )

    def _row(self, item: Mapping[str, Any]) -> dict[str, Any]:
        question = item["question"]
        row = {"question": question, "answer": item["answer"], "metadata": item["metadata"]}
        if self.prompt_style == "compact":
            return {"prompt": question, **row}
        return {"prompt": [{"role": "user", "content": _INSTRUCTION.replace("{question}", question)}], **row}


class ReasoningGymVerifier(GradedReward):
    """The score that a generator's own verifier gives an answer, from 0 to 1; right is 1.

    An answer that the verifier cannot read, because it raises on it, is wrong; one where it raises on the gold answer
    too has no verdict.

    Args:
        generator: Name of the generator.
        options: Its configuration.
        answer_format: Where the answer stands, see `stabledrl.rewards.answer_text`.

    Raises:
        UserInputError: reasoning-gym is not installed, has no such generator, or refuses the options.
    """

    def __init__(
        self, generator: str, options: dict[str, Any] | None = None, answer_format: AnswerFormat = "tags"
    ) -> None:
        self.answer_format: AnswerFormat = answer_format
        self._made_of = (generator, options, answer_format)
        self._items = make_generator(generator, options or {})

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), self._made_of  # Some generators hold what cannot be pickled.

    @override
    def grade(  # type: ignore[override]  # the columns it needs have names
        self, completion: str, /, *, question: str, answer: Any, metadata: Mapping[str, Any], **row: Any
    ) -> Grade:
        """Judges an answer.

        Args:
            completion: Text with the answer.
            question: The item's question.
            answer: Its gold answer.
            metadata: What the verifier knows of it.
            **row: Other columns, ignored.

        Returns:
            The verdict.
        """
        given = find_answer(completion, self.answer_format)
        if given is None:
            return Grade(correct=False, score=0.0, answer=None, reason="no complete answer tag")
        item = {"question": question, "answer": answer, "metadata": metadata}
        try:
            score = float(self._items.score_answer(given, item))
        except Exception as error:
            reason = f"the verifier raised {error!r}"[:200]
            if self._fails(answer, item):
                return Grade(correct=None, score=None, answer=given[:64], reason=reason)
            return Grade(correct=False, score=0.0, answer=given[:64], reason=reason)
        if not math.isfinite(score):
            return Grade(correct=None, score=None, answer=given[:64], reason=f"the verifier gave {score}")
        return Grade(correct=score >= 1, score=score, answer=given[:64], reason=f"scores {score:.3g}")

    def _fails(self, answer: Any, item: Mapping[str, Any]) -> bool:
        """Whether the verifier raises on any answer to this item, not just on one it cannot read."""
        try:
            self._items.score_answer(answer, item)
        except Exception:
            return True
        return False


def make_generator(name: str, options: Mapping[str, Any]) -> Any:
    """Makes a generator of reasoning-gym.

    Raises:
        UserInputError: It is not installed, there is no such generator, or its options are impossible.
    """
    if reserved := sorted({"seed", "size"} & set(options)):
        raise UserInputError(f"options must not hold {reserved[0]}; set the task's seed, train_size or evaluation_size")
    return _make(name, options)


def _make(name: str, options: Mapping[str, Any]) -> Any:
    gym = _import_gym()
    known = gym.factory.DATASETS
    if name not in known:
        close = difflib.get_close_matches(name, known)
        hint = f"did you mean {' or '.join(close)}?" if close else f"it has {len(known)}, such as chain_sum"
        raise UserInputError(f"reasoning-gym has no generator {name!r}; {hint}")
    try:
        return gym.create_dataset(name, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserInputError(f"reasoning-gym's {name} refuses the options {dict(options)}: {error}") from error


def _import_gym() -> ModuleType:
    try:
        import reasoning_gym
    except ImportError as error:
        raise UserInputError("reasoning-gym is not installed: pip install 'stabledrl[gym]'") from error
    return reasoning_gym
