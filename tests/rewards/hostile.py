"""Functions that worker processes run; at the top of an importable module, as they have to be."""

import asyncio
import os
import signal
import sys
import time
from typing import Any

from stabledrl.grade import Grade
from stabledrl.rewards import GradedReward


def nothing() -> None:
    pass


def square(number: int) -> int:
    return number * number


def process_id(*_: Any) -> int:
    return os.getpid()


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def hold_the_interpreter(digits: int) -> int:
    return int((7**digits) ** digits)


def take_memory(size: int) -> int:
    return len(bytearray(size))


def kill_yourself(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return number


def leave(code: int) -> None:
    sys.exit(code)


def refuse() -> None:
    raise OSError("no licence\nfor this")


def vanish() -> None:
    os._exit(7)


def loaded(*names: str) -> list[str]:
    return [name for name in names if name in sys.modules]


def lambdas() -> Any:
    return lambda: 1


def length(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def follow(completions: list[Any], gold: list[str], **columns: Any) -> list[Any]:
    """Does what the completion says."""
    return [_obey(text if isinstance(text, str) else text[0]["content"], own) for text, own in zip(completions, gold)]


def _obey(text: str, gold: str) -> Any:
    if text == "hang":
        while True:
            pass
    if text == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "raise":
        raise KeyError("sulphur")
    return {"none": None, "nan": float("nan"), "word": "good"}.get(text, float(text == gold))


def one_too_many(completions: list[str]) -> list[float]:
    return [0.0] * (len(completions) + 1)


def rank(completions: list[str]) -> list[float]:
    """Compares the completions of a batch."""
    return [float(sorted(completions).index(text)) for text in completions]


async def later(completions: list[str], **columns: Any) -> list[float]:
    await asyncio.sleep(0.01)
    return [float(text == "1") for text in completions]


class Obeying(GradedReward):
    def __init__(self, worth: float = 1.0) -> None:
        self.worth = worth

    def grade(self, completion: str, /, *, gold: str, **row: Any) -> Grade:
        right = bool(_obey(completion, gold))
        return Grade(correct=right, score=self.worth * right, answer=completion, reason="obeyed")


def hang_on_five(completions: list[str], gold: list[str]) -> list[float]:
    while "5" in gold:
        pass
    return [float(len(completions))] * len(gold)


def nobody(completions: list[str]) -> list[float]:
    raise LookupError("nobody there")
