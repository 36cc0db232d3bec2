#!/usr/bin/env python3
"""Holds soup-bench's rows against what docs/BENCHMARKS.md asks of them: see run_on_gpu.sh, which runs it.

  check_rows.py BENCH_JSON ROWS_WANTED
  check_rows.py --self-test             a good row passes, and each fault is found

A line a row with its command. Each must have arena = plan, and at most 16 MiB on the device beyond overhead and plan; those
that have a mark must reach it. Exit 1 when one does not, or when a row is missing.
"""
import json
import sys

MOST_UNPLANNED = 16 << 20
# (base, format, batch, seq, budget in GB): tokens a second at least. 0: a placement of its own.
SPEED = {
    ("llama-8b", "nf4-dq", 1, 512, 1.0): 3300,
    ("llama-8b", "nf4-dq", 1, 512, 3.4): 7000,
    ("llama-8b", "nf4-dq", 8, 512, 9.9): 16000,
    ("llama-8b", "nf4-dq", 32, 512, 32.0): 16300,
    ("llama-8b", "nf4-dq", 32, 512, 60.0): 19700,
    ("llama-8b", "nf4-dq", 4, 4096, 32.0): 14600,
    ("llama-8b", "nf4-dq", 1, 16384, 46.0): 9500,
    ("llama-8b", "bf16", 8, 512, 0.0): 19800,
}
# Rows that the link bounds: the copy stream's rate over the link's, at least.
LINK = {("llama-8b", "nf4-dq", 1, 512, 1.0): 0.95, ("llama-70b", "nf4-dq", 1, 512, 3.0): 0.9}
# Rows that the card's arithmetic bounds: stall over the step, at most.
STALL = 0.005
COMPUTE_BOUND_TOKENS = 4096


def check(row, link_gb_s):
    """What is amiss with a row, and its numbers."""
    key = (row["base"], row["format"], row["batch"], row["seq"], row["budget_bytes"] / 1e9)
    detail = row["detail"]
    wrong, says = [], []
    if row["arena_bytes"] != detail["planned_arena_bytes"]:
        wrong.append(f"arena {row['arena_bytes']}, planned {detail['planned_arena_bytes']}")
    if row["device_bytes"] > 0:
        unplanned = detail["unplanned_bytes"]
        says.append(f"{unplanned / 2**20:.1f} MiB unplanned, page tables {detail['page_table_bytes'] / 2**20:.1f}")
        if unplanned > MOST_UNPLANNED:
            wrong.append(f"{unplanned / 2**20:.1f} MiB on the device in no plan, at most 16")
    says.append(f"{row['tok_s']:.0f} tok/s")
    if key in SPEED:
        says[-1] += f" of {SPEED[key]}"
        if row["tok_s"] < SPEED[key]:
            wrong.append(f"{row['tok_s']:.0f} tok/s, at least {SPEED[key]}")
    if key in LINK and link_gb_s > 0:
        share = row["copy_gb_s"] / link_gb_s
        says.append(f"{share:.1%} of the link")
        if share < LINK[key]:
            wrong.append(f"{share:.1%} of the link, at least {LINK[key]:.0%}")
    if row["format"] != "bf16" and row["batch"] * row["seq"] >= COMPUTE_BOUND_TOKENS:
        says.append(f"stall {row['stall_fraction']:.2%}")
        if row["stall_fraction"] > STALL:
            wrong.append(f"stall {row['stall_fraction']:.2%}, at most {STALL:.1%}")
    return wrong, says


def self_test():
    good = {"base": "llama-8b", "format": "nf4-dq", "batch": 8, "seq": 512, "budget_bytes": 9900000000, "arena_bytes": 5,
            "device_bytes": 100, "tok_s": 16001.0, "stall_fraction": 0.004, "copy_gb_s": 20.0,
            "detail": {"planned_arena_bytes": 5, "unplanned_bytes": 1 << 23, "page_table_bytes": 11 << 20}}
    faults = [{"arena_bytes": 6}, {"tok_s": 15999.0}, {"stall_fraction": 0.006},
              {"detail": dict(good["detail"], unplanned_bytes=17 << 20)},
              {"batch": 1, "budget_bytes": 1000000000, "copy_gb_s": 52.0}]
    wrong = check(good, 55.0)[0]
    missed = [fault for fault in faults if not check(dict(good, **fault), 55.0)[0]]
    print(f"the good row: {wrong or 'ok'}; faults not found: {missed or 'none'}")
    return 1 if wrong or missed else 0


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    path, wanted = sys.argv[1], int(sys.argv[2])
    try:
        with open(path) as f:
            report = json.load(f)
    except (OSError, ValueError) as error:
        print(f"no report: {error}")
        return 1
    short = 0
    for row in report["rows"]:
        wrong, says = check(row, report["ceilings"]["copy_to_device_gb_s"])
        short += bool(wrong)
        print(f"{'BELOW' if wrong else 'ok':5}  {'; '.join(says)}{' -- ' if wrong else ''}{'; '.join(wrong)}\n       $ {row['command']}")
    rows = len(report["rows"])
    print(f"{rows} of {wanted} rows ran, {rows - short} of them as asked")
    return 1 if short or rows < wanted else 0


if __name__ == "__main__":
    sys.exit(main())
