"""Prints the timings and errors that kernels.sh left in a folder, one line a shape, one column an implementation."""

import csv
import sys
from collections import defaultdict
from pathlib import Path


def rows(folder, pattern):
    for path in sorted(folder.glob(pattern)):
        with open(path, newline="") as file:
            yield from csv.DictReader(file)


def table(title, cells):
    """`cells`: (line, column) -> text."""
    columns = sorted({column for _, column in cells})
    lines = list(dict.fromkeys(line for line, _ in cells))
    width = max([len(line) for line in lines], default=0)
    print(f"{title:<{width}} " + " ".join(f"{column:>17}" for column in columns))
    for line in lines:
        print(f"{line:<{width}} " + " ".join(f"{cells.get((line, column), '-'):>17}" for column in columns))


def timings(folder):
    cells = defaultdict(dict)
    for row in rows(folder, "bench-*.csv"):
        shape = "d{head_dim} {heads}/{kv_heads} B{batch} L{len} {mask}".format(**row)
        if row["ranks"] != "1":
            shape += " {layout} x{ranks} {scope}".format(**row)
        cells[shape, row["implementation"]][row["pass"]] = row["tflops"]
    return {key: f"{passes.get('forward', '-')} / {passes.get('backward', '-')}" for key, passes in cells.items()}


def errors(folder):
    return {
        (f"{row['problem']} {row['tensor']}", row["implementation"]): row["relative_l2"]
        for row in rows(folder, "accuracy-*.csv")
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    table("relative L2 error", errors(target))
    table("TFLOP/s, forward / backward", timings(target))
