"""Measures speed and memory against plain implementations: a JSON line each, and a table on stderr.

python -m benchmarks                 # all, some minutes on one core
python -m benchmarks --only R1 E1    # some
python -m benchmarks --write         # also into benchmarks/results/speed.jsonl

Exit code 1 where a ratio misses its gate.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.speed.comparison import measure, missed, table
from benchmarks.speed.registry import BENCHMARKS

RESULTS = Path(__file__).parent / "results" / "speed.jsonl"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS), metavar="ID")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name} too; needs all of them")
    options = parser.parse_args(arguments)
    if options.write and options.only != list(BENCHMARKS):
        parser.error("--write keeps the results of all benchmarks; leave out --only")
    torch.set_num_threads(1)
    results, lines = [], []
    for name in options.only:
        for comparison in BENCHMARKS[name]():
            results.append(measure(comparison))
            lines.append(json.dumps(asdict(results[-1])))
            print(lines[-1], flush=True)
    print(table(results), file=sys.stderr)
    if options.write:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(any(missed(result) for result in results))


if __name__ == "__main__":
    sys.exit(main())
