#!/usr/bin/env python3
"""Time of one prediction from Python, of a sweep, and of `import ftmem`, beside a fixed loop timed in the same run.

    .venv/bin/python bench/bench.py
"""
import subprocess
import sys
import time

import ftmem

ROUNDS = 7


def best(call, seconds=0.05):
    """Seconds of one call: the best of several rounds, since other processes only add."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
        count += 1
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - start) / count)
    return min(rounds)


def reference():
    x = 0
    for i in range(1000):
        x ^= i * 7
    return x


def interpreter(code):
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main():
    job = {"method": "qlora", "rank": 16, "batch_size": 2, "seq_len": 4096, "gradient_checkpointing": True, "gpu": "rtx-4090"}
    model = "meta-llama/Llama-3.1-8B"
    unit = best(reference)
    rows = [
        ("reference loop", unit),
        ("predict, QLoRA", best(lambda: ftmem.predict(model, **job))),
        ("predict, full", best(lambda: ftmem.predict(model, batch_size=4, seq_len=2048))),
        ("estimate_memory", best(lambda: ftmem.estimate_memory(model, batch_size=4, seq_len=2048, precision="bf16"))),
    ]
    sweep = [{"model": model, **job, "batch_size": b, "seq_len": 512 * s} for b in range(1, 9) for s in range(1, 9)]
    rows.append(("predict_many, one of 64", best(lambda: ftmem.predict_many(sweep)) / len(sweep)))
    for name, seconds in rows:
        print(f"{name:32s} {seconds * 1e6:10.1f} us  {seconds / unit:8.2f} x reference")
    bare = min(interpreter("pass") for _ in range(ROUNDS))
    for code in ("import ftmem", "import ftmem; ftmem.predict"):
        print(f"{code:32s} {(min(interpreter(code) for _ in range(ROUNDS)) - bare) * 1e3:10.1f} ms  over a bare interpreter")


if __name__ == "__main__":
    main()
