"""Starts TensorBoard on the runs that event_file_test.cpp has written, once for each of its two ways of reading event
files, and compares what it answers by HTTP with what was written. Exit code 1, and a line for each difference."""
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


def ask(base, path, **query):
    url = base + path + ("?" + urllib.parse.urlencode(query) if query else "")
    with urllib.request.urlopen(url, timeout=30) as answer:
        body = answer.read()
        return json.loads(body) if "json" in answer.headers.get("Content-Type", "") else body


def start(folder, fast):
    """The process and the address that it serves."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", "0", "--reload_interval", "1",
         "--load_fast", "true" if fast else "false"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = []
    for line in server.stderr:
        said.append(line)
        for word in line.split():
            if word.startswith("http://") and "TensorBoard" in line:
                return server, word.rstrip("/")
    server.kill()
    raise SystemExit("TensorBoard has not begun:\n" + "".join(said))


RESUMED = [[step, step + (0.5 if step >= 7 else 0.0)] for step in range(1, 13)]
SCALARS = {
    ("all/train", "loss"): [[0, 1.0], [1, 0.5], [2, "NaN"], [3, "Infinity"], [4, "-Infinity"]],
    ("all/train", "time/input"): [[step, 0.25] for step in range(5)],
    ("resumed/validation", "loss"): RESUMED,
    ("resumed_by_a_clock_behind", "loss"): RESUMED,
    ("torn", "loss"): [[step, step + (0.5 if step >= 4 else 0.0)] for step in range(1, 9)],
}


def wait_until_read(base):
    for _ in range(300):
        try:
            if all(len(ask(base, "/data/plugin/scalars/scalars", run=run, tag=tag)) >= len(points)
                   for (run, tag), points in SCALARS.items()):
                return
        except urllib.error.HTTPError:
            pass  # a run that is not known yet
        time.sleep(0.1)


def compare(base):
    """What differs, as lines."""
    found = []

    def expect(what, got, wanted):
        if got != wanted:
            found.append(f"{what}: {got}, expected {wanted}")

    expect("runs", sorted(ask(base, "/data/runs")), sorted({run for run, _ in SCALARS}))
    for (run, tag), points in SCALARS.items():
        expect(f"{tag} of {run}", [point[1:] for point in ask(base, "/data/plugin/scalars/scalars", run=run, tag=tag)],
               points)
    rows = ask(base, "/data/plugin/histograms/histograms", run="all/train", tag="weights/0.weight")
    expect("histograms", len(rows), 5)
    counted = [bucket[2] for bucket in rows[-1][2]]
    expect("buckets", counted, [1.0, 2.0] + [0.0] * 27 + [1.0])
    texts = ask(base, "/data/plugin/text/text", run="all/train", tag="findings")
    expect("texts", [(text["step"], "<strong>LS-LOSS-NOT-SCALED</strong>" in text["text"]) for text in texts],
           [(4, True)])
    images = ask(base, "/data/plugin/images/images", run="all/train", tag="samples", sample=0)
    expect("images", [image["step"] for image in images], [4])
    png = ask(base, "/data/plugin/images/individualImage?" + images[0]["query"])
    expect("an image's first bytes", png[:8], b"\x89PNG\r\n\x1a\n")
    return found


differences = []
for fast in (True, False):
    server, base = start(sys.argv[1], fast)
    try:
        wait_until_read(base)
        differences += [f"{'fast' if fast else 'slow'} loader, {line}" for line in compare(base)]
    finally:
        server.terminate()
        server.wait()
print("\n".join(differences) or "TensorBoard shows what was written")
sys.exit(bool(differences))
