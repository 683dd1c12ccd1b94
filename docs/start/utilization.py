#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws utilization.svg, the picture of the README: what each device does in a step before and after planning.

    docs/start/utilization.py [--bin build/release/bin] [--check]

Before: plain data parallelism with equal shares (`agpcs-compile --seeder equal --refiner none`). After: the plan that
`agpcs-compile` makes by default. `agpcs-plan report --against` draws the chart into its page; this script takes it out
and gives it a legend, and colors for a white and for a dark background. With --check it draws nothing, and fails if the
file differs from what it would draw.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PICTURE = pathlib.Path(__file__).with_name("utilization.svg")
MODEL = "samples/models/resnet50.onnx"
CLUSTER = "samples/clusters/v100x4-rtx3090x4.yaml"

CHART = re.compile(r'<svg viewBox="0 0 1000 (\d+)"[^>]* aria-label="what each device does in a step">(.*?)</svg>',
                   re.DOTALL)
NAME_OF_DEVICE = re.compile(r'<text x="0" ')
BARS_AT = 170  # where the chart's bars begin; the names of devices stand left of them
LEFT, RIGHT = 90, 985  # what the picture shows of the chart
LEGEND = (("compute", "computing", 170), ("exposed", "exposed communication", 265), ("idle", "idle", 465))
LEGEND_HEIGHT = 30
TITLE = "what each device does in a step, before and after planning"
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #757d87; }
.head { font-weight: 600; }
.compute { fill: #3d86cf; }
.exposed { fill: #e8871e; }
.idle { fill: #8b949e; fill-opacity: 0.28; }
"""


def run(folder, command, *arguments):
    subprocess.run([folder / command, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def report(folder):
    """The page of `agpcs-plan report` on the plan for MODEL and CLUSTER, against equal shares."""
    with tempfile.TemporaryDirectory() as temporary:
        equal, planned, page = (pathlib.Path(temporary, name) for name in ("equal.plan", "resnet50.plan", "page.html"))
        run(folder, "agpcs-compile", "-q", MODEL, CLUSTER, "--seeder", "equal", "--refiner", "none", "-o", equal)
        run(folder, "agpcs-compile", "-q", MODEL, CLUSTER, "-o", planned)
        run(folder, "agpcs-plan", "report", planned, "--model", MODEL, "--cluster", CLUSTER, "--against", equal,
            "-o", page)
        return page.read_text(encoding="utf-8")


def picture(page):
    """The chart of `page` as a file of its own."""
    chart = CHART.search(page)
    if not chart:
        sys.exit("utilization.py: error: the report has no chart of what each device does")
    height = int(chart[1]) + LEGEND_HEIGHT
    bars = NAME_OF_DEVICE.sub(f'<text text-anchor="end" x="{BARS_AT - 10}" ', chart[2].replace(' class=""', ""))
    legend = "".join(f'<rect x="{x}" y="4" width="12" height="12" class="{name}"/>'
                     f'<text x="{x + 18}" y="15">{words}</text>\n' for name, words, x in LEGEND)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{LEFT} 0 {RIGHT - LEFT} {height}" '
            f'width="{RIGHT - LEFT}" height="{height}" role="img" aria-label="{TITLE}">\n'
            f"<!-- made by docs/start/utilization.py -->\n<style>{STYLE}</style>\n{legend}"
            f'<g transform="translate(0 {LEGEND_HEIGHT})">{bars}</g>\n</svg>\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of the commands")
    parser.add_argument("--check", action="store_true", help="fail if the picture is not what this would draw")
    options = parser.parse_args()
    text = picture(report(options.bin.resolve()))
    if not options.check:
        PICTURE.write_text(text, encoding="utf-8")
    elif text != PICTURE.read_text(encoding="utf-8"):
        print(f"{PICTURE.relative_to(ROOT)} is not what the product draws now.\n"
              "Run docs/start/utilization.py, and correct README.md and docs/start/quickstart.md, which show the same plan.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
