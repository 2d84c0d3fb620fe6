"""Speed and memory against plain implementations of the same computation: `python -m benchmarks`.

A file per stage: `rollouts`, `sampling`, `estimates`, `updates`. Each holds functions that make a `Comparison`; they
are listed in `benchmarks.speed.registry`. The plain implementations are in `plain`, the models in `models`.
"""
