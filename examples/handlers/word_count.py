"""Counts the words of each argument. A task comes as JSON on standard input; the answer is JSON, one object a line, on standard output."""

import json
import sys


def answer(**line):
    print(json.dumps(line), flush=True)


def main():
    job = json.load(sys.stdin)
    texts = job["spec"].get("args", [])
    if not texts:
        # It would fail again: no other attempt is made.
        answer(error={"message": "give me at least one text", "permanent": True})
        return
    answer(log={"level": "info", "message": f"task {job['tid']}, attempt {job['attempt']}"})
    counts = []
    for number, text in enumerate(texts, 1):
        counts.append(len(str(text).split()))
        answer(progress={"percent": 100 * number / len(texts), "message": f"text {number} of {len(texts)}"})
    answer(result={"words": sum(counts), "each": counts})


main()
