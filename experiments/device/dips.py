"""The clock of GPUs under lasting load, against the time since the load began.

    python3 experiments/device/dips.py experiments/results/h200-validation-2026-11-30/{third,fourth,fifth,sixth}/nvidia-smi.csv

Input: `seconds,gpu,sm_mhz,power_w,...` of GPUs that work and rest in turns. `power_w` is a mean over the last second, so it rises
and falls by a straight line, which gives both ends of a load to a few hundredths of a second, though samples are 0.3 s apart. Loads that began
after a rest (less than 260 W) and lasted 1.3 s or more count. Clocks are over the median of the load's own samples from 1.1 to 1.6 s.
"""

import csv
import statistics
import sys
from collections import defaultdict

RESTED, FULL, BUSY = 260.0, 690.0, 665.0
BIN = 0.1


def samples(path):
    by_gpu = defaultdict(list)
    with open(path) as file:
        for row in csv.DictReader(file):
            by_gpu[row["gpu"]].append((float(row["seconds"]), float(row["sm_mhz"]), float(row["power_w"])))
    return by_gpu.values()


def began(rising, rest):
    """Seconds at which the power of a second began to rise from `rest`."""
    rising = [(t, power) for t, _, power in rising if rest + 60 < power < 640][:3]
    return statistics.median(t - (power - rest) / (FULL - rest) for t, power in rising) if rising else None


def loads(all_samples):
    """Of each load its samples, as seconds since it began and clock."""
    i = 1
    while i < len(all_samples) - 1:
        rest, power = all_samples[i - 1][2], all_samples[i][2]
        start = began(all_samples[i : i + 4], rest) if rest < RESTED and power > rest + 60 else None
        end = i
        while start is not None and end < len(all_samples) and (all_samples[end][2] > BUSY or all_samples[end][0] - start < 1.05):
            end += 1
        if start is not None and end < len(all_samples) and all_samples[end][2] > 200:
            last = all_samples[end][0] - (FULL - all_samples[end][2]) / (FULL - rest)
            if last - start > 1.3:
                yield [(t - start, clock) for t, clock, _ in all_samples[i : end + 1] if t <= last]
                i = end
        i += 1


def main(paths):
    bins, count = defaultdict(list), 0
    for path in paths:
        for all_samples in samples(path):
            for load in loads(all_samples):
                settled = [clock for t, clock in load if 1.1 <= t <= 1.6]
                if settled:
                    count += 1
                    for t, clock in load:
                        bins[round(t / BIN)].append(clock / statistics.median(settled))
    print(f"{count} loads")
    for at, clocks in sorted(bins.items()):
        if len(clocks) >= 5:
            tenths = statistics.quantiles(clocks, n=10)
            print(f"{at * BIN:.1f} s  {len(clocks):3} samples  median {statistics.median(clocks):.3f}  {tenths[0]:.3f} to {tenths[-1]:.3f}")
    for first in (1.5, 2.5, 3.5):
        second = [bins[at] for at in range(round(first / BIN), round((first + 1) / BIN)) if bins[at]]
        print(f"{first} to {first + 1} s: mean of medians {statistics.mean(map(statistics.median, second)):.3f}")


main(sys.argv[1:])
