"""table.py SAMPLES.jsonl: medians, spread, and the ratio to bare of the same round."""
import json
import sys
from statistics import median

rows = [json.loads(line) for line in open(sys.argv[1])]
by = {}
for row in rows:
    by.setdefault(row["label"], []).append(row)
bare = by["bare"]
print("| contestant | runs | wall s, median | min-max | x bare, median of rounds | CPU s, median | CPU s over bare, median of rounds | complete |")
print("|---" * 8 + "|")
for name, runs in sorted(by.items(), key=lambda item: median(r["wall_s"] for r in item[1])):
    wall = [r["wall_s"] for r in runs]
    print("| %s | %d | %.2f | %.2f-%.2f | %.3f | %.2f | %+.2f | %d |" % (
        name, len(runs), median(wall), min(wall), max(wall),
        median(r["wall_s"] / b["wall_s"] for r, b in zip(runs, bare)),
        median(r["cpu_s"] for r in runs),
        median(r["cpu_s"] - b["cpu_s"] for r, b in zip(runs, bare)),
        sum(r["ok"] and r["rc"] == 0 for r in runs)))
