"""Run every benchmark and write RESULTS.md from the results.

    python benchmarks/results.py [--quick] [--only NAME ...] [--out FILE]

Each script runs in a separate process and prints one JSON line. The lines are stored beside RESULTS.md in
results.jsonl, so that a run of some scripts (`--only`) keeps the figures of the others. The text about the
figures comes from the scripts (their `notes`) and is written together with the figures.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

HERE = Path(__file__).resolve().parent
SCRIPTS = (
    *("paper_experiment", "gp_step", "scaling", "roofline", "group_lasso", "ask_latency", "first_answer"),
    *("ill_conditioned", "tuner_scale", "arena_speed"),
)
TITLES = dict(
    paper_experiment="The paper's experiment",
    gp_step="One suggestion",
    scaling="Growth",
    roofline="Distance to the machine's limits",
    group_lasso="The group lasso",
    ill_conditioned="Ill-conditioned group lassos",
    ask_latency="A question to the tuner",
    first_answer="The first answer of a fresh process",
    tuner_scale="A tuner with a large past",
    arena_speed="The methods of the arena",
)


def run_script(name, quick):
    """Run a benchmark and return its result, or None if it failed; its output is shown as it is printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "line.json"
        command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(path)]
        print(f"=== {name}", flush=True)
        begin = time.perf_counter()
        code = subprocess.run(command + ["--quick"] * quick, check=False).returncode
        if code != 0 or not path.exists():
            print(f"{name} failed with exit code {code}", file=sys.stderr)
            return None
        result = json.loads(path.read_text())
        return dict(result, minutes=(time.perf_counter() - begin) / 60, date=time.strftime("%Y-%m-%d"))


def load(path):
    """Return the stored results of earlier runs, by name."""
    if not path.exists():
        return {}
    return {line["benchmark"]: line for line in map(json.loads, path.read_text().splitlines())}


def write(path, text):
    """Write the file atomically."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def markdown(results):
    """Return the text of RESULTS.md, given the results by name."""
    lines = [
        "# Results",
        "",
        "Written by `make bench` (benchmarks/results.py); do not edit by hand. Medians of interleaved",
        "repeats; compilation is apart unless a row says otherwise.",
        "",
    ]
    chosen = [results[name] for name in SCRIPTS if name in results]
    if any(result.get("quick") for result in chosen):
        lines += ["**A quick run on small sizes: these figures say nothing about speed.**", ""]
    lines += [
        "## Aims",
        "",
        *harness.markdown_table(["", "aim", "wanted", "measured", ""], aim_rows(chosen)),
        "",
    ]
    for result in chosen:
        lines += section(result)
    return "\n".join(lines).rstrip() + "\n"


def aim_rows(results):
    rows = []
    for result in results:
        for one in result.get("aims", ()):
            bound = f"{'at most' if one['at_most'] else 'at least'} {harness.number(one['wanted'])}"
            verdict = "met" if one["met"] else "**missed**"
            rows.append([result["benchmark"], one["aim"], bound, harness.number(one["measured"]), verdict])
    return rows


def section(result):
    name = result["benchmark"]
    machine = result["machine"]
    versions = {k: v for k, v in machine.items() if k not in ("cpu", "cores", "memory_gb")}
    said = [f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB"]
    said += [f"{package} {version}" for package, version in versions.items()]
    for peer in result.get("peers") or []:
        said += [f"{package} {version}" for package, version in peer.items()]
    lines = [
        f"## {TITLES[name]}",
        "",
        f"`benchmarks/{name}.py`, {result.get('date', '')}. {', '.join(said)}.",
        "",
    ]
    for one in result.get("tables", ()):
        lines += [f"{one['title']}:", "", *harness.markdown_table(one["header"], one["rows"]), ""]
    if result.get("notes"):
        lines += [result["notes"], ""]
    return lines


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=SCRIPTS, metavar="NAME")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md", help="where to write the tables")
    options = parser.parse_args()
    kept = options.out.with_name("results.jsonl")
    results = load(kept)
    failed = []
    for name in options.only:
        result = run_script(name, options.quick)
        if result is None:
            failed.append(name)
            continue
        results[name] = result
        write(kept, "".join(json.dumps(results[each]) + "\n" for each in SCRIPTS if each in results))
        write(options.out, markdown(results))
    print(f"written to {options.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
