"""Prints what runtime.sh left in a folder: errors, rates, validation.

    table_runtime.py FOLDER
"""

import csv
import json
import sys
from pathlib import Path

ERRORS = ["o", "lse", "dq", "dk", "dv"]


def results(path):
    return json.loads(path.read_text()).get("results", [])


def correctness(folder):
    for path in sorted(folder.glob("correct-*.json")):
        rows = results(path)
        worst = {e: max((r[f"{e}_max_rel_error"] or 0 for r in rows), default=0) for e in ERRORS}
        bad = [r["schedule"] for r in rows if not r.get("within_bound", True)]
        print(f"{path.stem}: {len(rows)} rows, worst " + ", ".join(f"{e} {w:.1e}" for e, w in worst.items()), "BAD" if bad else "", *bad)


def times(folder):
    for path in sorted(folder.glob("times-*.json")):
        for r in results(path):
            fields = ["time_s", "tflops_per_gpu", "exposed_comm_s", "bubble_ratio", "predicted_s"]
            values = {f: r.get(f) for f in fields if isinstance(r.get(f), float)}
            print(f"{path.stem} {r['schedule']} {r['pass']}:", " ".join(f"{f} {v:.4g}" for f, v in values.items()))


def peers(folder):
    path = folder / "context-parallel-peers.csv"
    for r in csv.DictReader(path.open()) if path.exists() else []:
        print(f"torch {r['kernel']} balance={r['load_balance']} {r['rotate']} {r['seq_len']} {r['pass']}: {float(r['tflops_per_gpu']):.0f}")


def validation(folder):
    path = folder / "validate.json"
    if path.exists():
        report = json.loads(path.read_text())
        keys = ["mape", "max_error", "bias", "coverage", "speedup_mape", "speedup_max_error"]
        print(len(report["points"]), "points:", {k: report[k] for k in keys})
        for p in report["points"]:
            name = [p[k] for k in ("schedule", "pass", "seq_len", "kv_heads", "head_dim", "transport", "launching")]
            print(*name, f"predicted {p['predicted_s'] * 1e3:.3f} ms measured {p['measured_s'] * 1e3:.3f} {100 * p['error']:+.1f}%")


def main():
    folder = Path(sys.argv[1])
    for part in (correctness, times, peers, validation):
        part(folder)


main()
