"""Chooses the settings of `lifelong-glmnet-practitioner`, on the half of the data sets it is not reported on.

    python benchmarks/choose_glmnet.py [--seeds 20]

The grid consists of values of `nu` and of pairs (lam, omega), the same for both learners. For each it prints
the lifelong regret and the simple regret (best so far, the last half of the tasks, in thousandths of AUC)
after 10 and 50 steps and at the end. The criterion is the simple regret after 50 steps, a common budget. The
nu of all agents is the best one for the full kernel, so that the full kernel is not at a disadvantage; lam
and omega are the best pair for LiBO at that nu. F-LiBO uses LiBO's pair: three of its own four are within a
tenth of each other, and five seeds rank them differently from twenty.
"""

import argparse
import json
import tempfile

import jax

from jlibo import experiments

NUS = (1.0, 2.0, 4.0, 8.0)
LAMS_AND_OMEGAS = ((0.05, 0.02), (0.02, 0.02), (0.005, 0.01), (0.002, 0.005))
STEPS = ("10", "50", "144")


def main() -> None:
    parser = argparse.ArgumentParser(description="Choose the practitioner's settings on the first half.")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    base = experiments.find("lifelong-glmnet-practitioner").changed({"half": "first", "num_tasks": 26})
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        # The settings are inputs of the compiled program, so that all runs share it.
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        heading = f"{'agent':7} {'regret':>7}  simple regret x 1000 at 10, 50, 144"
        print(f"{'nu':>4} {'lam':>6} {'omega':>6}  {heading}")
        for nu in NUS:
            for lam, omega in LAMS_AND_OMEGAS:
                pairs = {"lam": lam, "omega": omega, "lam_federated": lam, "omega_federated": omega}
                result = experiments.run_experiment(
                    base.changed({"nu": nu, **pairs}), num_seeds=options.seeds
                )
                agents = experiments.summarise(result)["agents"]
                for agent in ("full", "libo", "flibo"):
                    simple = [
                        1e3 * agents[agent]["simple_regret"]["last_half"][step]["mean"] for step in STEPS
                    ]
                    regret = agents[agent]["lifelong_regret"]["mean"]
                    rows.append(dict(agent=agent, nu=nu, lam=lam, omega=omega, regret=regret, simple=simple))
                    shown = "  ".join(f"{value:6.2f}" for value in simple)
                    print(f"{nu:4g} {lam:6g} {omega:6g}  {agent:7} {regret:7.1f}  {shown}", flush=True)
    for best in choose(rows).values():
        print(json.dumps({"chosen": best}))


def choose(rows: list[dict]) -> dict[str, dict]:
    """Return the row that the rule selects for each agent."""
    full = _least([row for row in rows if row["agent"] == "full"])
    at_nu = [row for row in rows if row["nu"] == full["nu"]]
    libo = _least([row for row in at_nu if row["agent"] == "libo"])
    pair = libo["lam"], libo["omega"]
    flibo = next(row for row in at_nu if row["agent"] == "flibo" and (row["lam"], row["omega"]) == pair)
    return {"full": full, "libo": libo, "flibo": flibo}


def _least(rows: list[dict]) -> dict:
    return min(rows, key=lambda row: row["simple"][STEPS.index("50")])


if __name__ == "__main__":
    main()
