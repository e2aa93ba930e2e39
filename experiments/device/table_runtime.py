"""Prints what runtime.sh left in a folder: errors, rates, validation.

    table_runtime.py FOLDER
"""

import csv
import json
import sys
from pathlib import Path

PAPERS = Path(__file__).resolve().parent.parent / "papers"
ERRORS = ["o", "lse", "dq", "dk", "dv"]


def results(path):
    return json.loads(path.read_text()).get("results", [])


def correctness(folder):
    for path in sorted(folder.glob("correct-*.json")):
        rows = results(path)
        worst = {e: max((r[f"{e}_max_rel_error"] or 0 for r in rows), default=0) for e in ERRORS}
        cut = sum("was near" in line for line in json.loads(path.read_text()).get("left_out", []))
        bad = [r["schedule"] for r in rows if not r.get("within_bound", True)]
        print(f"{path.stem}: {len(rows)} rows, worst " + ", ".join(f"{e} {w:.1e}" for e, w in worst.items()), "BAD" if bad else "", *bad)
        if cut:
            print(f"{path.stem}: {cut} schedules or passes NOT RUN, no time left")


def times(folder):
    for path in sorted(folder.glob("times-*.json")):
        for r in results(path):
            fields = ["time_s", "tflops_per_gpu", "exposed_comm_s", "bubble_ratio", "predicted_s"]
            values = {f: r.get(f) for f in fields if isinstance(r.get(f), float)}
            print(f"{path.stem} {r['schedule']} {r['pass']}:", " ".join(f"{f} {v:.4g}" for f, v in values.items()))


def published():
    """Percentages of the README of ring-flash-attention by (schedule, pass): on eight H800 and eight A100."""
    names = {"ring": "ring", "zigzag": "zigzag", "stripe": "striped"}
    found = {}
    for file in ("h800.csv", "a100.csv"):
        for r in csv.DictReader((PAPERS / "ring-flash-attention" / file).open()):
            if r["api"] == "batch" and r["impl"] in names:
                key = (names[r["impl"]], "forward" if r["pass"] == "fwd" else "forward+backward")
                found.setdefault(key, []).append(f"{r['gpus']} {r['pct_of_theoretic']}%")
    return found


def seconds(rows, schedule, field):
    """Times of the forward, and of the forward with its backward."""
    times = {r["pass"]: r[field] for r in rows if r["schedule"] == schedule and r.get(field) is not None}
    both = times["forward"] + times["backward"] if {"forward", "backward"} <= times.keys() else None
    return {"forward": times.get("forward"), "forward+backward": both}


def shape(folder):
    """P GPUs with 8Ki tokens each do P^2 times the work of one with 8Ki: P t(1) / t(P) is 100% of "theoretic"."""
    one = folder / "shape-one.json"
    if not one.exists():
        return
    for path in (folder / f"shape-{by}.json" for by in ("copies", "nccl")):
        rows = results(path) if path.exists() else []
        for schedule in dict.fromkeys(r["schedule"] for r in rows):
            for which, others in ((w, published().get((schedule, w), [])) for w in ("forward", "forward+backward")):
                shown = []
                for name, field in (("measured", "time_s"), ("predicted", "predicted_s")):
                    alone, together = (seconds(x, s, field)[which] for x, s in ((results(one), "ring"), (rows, schedule)))
                    if alone and together:
                        shown.append(f"{name} {100 * rows[0]['cp'] * alone / together:.1f}%")
                print(f"{path.stem} {schedule} {which}:", ", ".join(shown), "| published", ", ".join(others))


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
            name = [p[k] for k in ("schedule", "pass", "cp", "seq_len", "kv_heads", "head_dim", "transport", "launching")]
            print(*name, f"predicted {p['predicted_s'] * 1e3:.3f} ms measured {p['measured_s'] * 1e3:.3f} {100 * p['error']:+.1f}%")


def name_earned(folder):
    """Whether the calibrated cluster may be called validated, as docs/eight-gpus.md says; if so it is written."""
    report, cluster = folder / "validate.json", folder / "calibrated.toml"
    if not report.exists() or not cluster.exists():
        return
    report = json.loads(report.read_text())
    devices = int(report["machine"].split(" x ")[0])
    reached, left = len(report["points"]), len(report["not_reached"])
    reasons = [] if "H200" in report["machine"] else ["these are no H200s"]
    if report["mape"] > 0.03:
        reasons.append(f"MAPE {100 * report['mape']:.1f}% is above 3%")
    if report["max_error"] > 0.08:
        reasons.append(f"the worst point's {100 * report['max_error']:.1f}% are above 8%")
    if report["broke"] or reached < 2 * left or not reached:
        reasons.append(f"{left} points were not reached")
    if all(p["cp"] != devices for p in report["points"]):
        reasons.append("no point had all devices")
    name = f"h200-nvl{devices}-validated"
    if reasons:
        print(f"{name} is not earned:", "; ".join(reasons))
        return
    lines = cluster.read_text().split("\n", 1)
    (folder / f"{name}.toml").write_text(f'name = "{name}"\n{lines[1]}')
    print(f"{name} is earned: {folder / name}.toml")


def main():
    folder = Path(sys.argv[1])
    for part in (correctness, times, shape, peers, validation, name_earned):
        part(folder)


main()
