"""Tables of an arena in Markdown: one for each environment, and one for each method.

| table               | rows                                                                 |
|---------------------|----------------------------------------------------------------------|
| `environment_table` | the methods that run on an environment, the least regret first       |
| `method_table`      | the environments on which a method runs                              |
| `all_tables`        | both for everything, with headings, beside the tables of the result  |

"First" and "last" are the excess over the method's own oracle in the first and last quarter of the tasks.
Methods that play all tasks at the same time are marked with *: no task is early or late.
"""

from jlibo.arena.claims import claims_of
from jlibo.arena.result import ArenaResult, Score, markdown
from jlibo.front_door import front_door

COMPARED = ("oracle", "independent")
"""Methods whose regret is a column of the tables of other methods."""


@front_door
def environment_table(result: ArenaResult, environment: str) -> str:
    """Return regret and excess of every method on an environment, as a table in Markdown.

    ```python
    from jlibo.arena import ENVIRONMENTS, METHODS, environment_table, run_arena

    small = ENVIRONMENTS["gaussian-arms"].sized(num_tasks=2, horizon=10)
    result = run_arena([METHODS["independent"]], [small], num_seeds=2)
    print(environment_table(result, "gaussian-arms"))
    ```
    """
    found = {method.name: result.score(method.name, environment) for method in result.methods}
    scores = {name: score for name, score in found.items() if score is not None}
    lines = [["method", "regret per task", "relative", "first", "last"]]
    for name in sorted(scores, key=lambda name: scores[name].regret.mean):
        score = scores[name]
        relative = "" if score.ratio is None else f"{score.ratio:.2f}"
        lines.append(
            [_marked(result, name), score.regret.in_words(), relative, *_excess(result, name, score)]
        )
    return markdown(lines)


@front_door
def method_table(result: ArenaResult, method: str) -> str:
    """Return regret and excess of a method on every environment where it runs, as a table in Markdown.

    ```python
    from jlibo.arena import ENVIRONMENTS, METHODS, method_table, run_arena

    small = ENVIRONMENTS["gaussian-arms"].sized(num_tasks=2, horizon=10)
    result = run_arena([METHODS["independent"]], [small], num_seeds=2)
    print(method_table(result, "independent"))
    ```
    """
    played = [one.name for one in result.methods]
    compared = [name for name in COMPARED if name in played and name != method]
    lines = [["environment", "regret per task", *(f"`{name}`" for name in compared), "first", "last"]]
    for one in result.environments:
        score = result.score(method, one.name)
        if score is None:
            continue
        others = [result.score(name, one.name) for name in compared]
        beside = ["" if other is None else other.regret.in_words() for other in others]
        cells = [score.regret.in_words(), *beside, *_excess(result, method, score)]
        lines.append([f"`{one.name}`", *cells])
    return markdown(lines)


@front_door
def claims_table(result: ArenaResult) -> str:
    """Return what the paper's tables 1 to 3 say of each method beside its excess here, in Markdown.

    ```python
    from jlibo.arena import ENVIRONMENTS, METHODS, claims_table, run_arena

    small = ENVIRONMENTS["gaussian-arms"].sized(num_tasks=2, horizon=10)
    result = run_arena([METHODS["hier-ts"]], [small], num_seeds=2)
    print(claims_table(result))
    ```
    """
    heads = ["method", "regret bound", "tasks", "oracle optimal?", "cost in d"]
    lines = [[*heads, "environment", "first", "last", "falls to its oracle?"]]
    for method in result.methods:
        for claim in claims_of(method.name):
            for one in result.environments:
                score = result.score(method.name, one.name)
                if score is None or one.name not in claim.environments:
                    continue
                optimal = "yes" if claim.oracle_optimal else "no"
                left = [method.name, claim.rate, claim.tasks, optimal, claim.cost, one.name]
                verdict = "tasks run at once" if is_concurrent(result, method.name) else falls(score)
                lines.append([*left, *_excess(result, method.name, score), verdict])
    return markdown(lines)


def falls(score: Score) -> str:
    """Return in words whether the excess falls to zero as tasks accumulate."""
    if score.late.mean <= 2 * score.late.error:
        return "yes"
    # Two standard errors of a difference, as if independent: the two parts have different tasks.
    error = (score.early.error**2 + score.late.error**2) ** 0.5
    if score.late.mean < score.early.mean - 2 * error:
        return f"in part: {score.late.mean / score.early.mean:.0%} is left"
    return "no"


def all_tables(result: ArenaResult) -> str:
    """Return the content of `tables.md`."""
    parts = ["# Regret per task relative to the oracle", result.table()]
    parts += ["# Bounds of the paper's tables 1 to 3 beside the measured excess", claims_table(result)]
    parts += ["# Environments"]
    for one in result.environments:
        parts += [f"## {one.name}", environment_table(result, one.name)]
    parts += ["# Methods"]
    for method in result.methods:
        parts += [f"## {method.name}", method_table(result, method.name)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _excess(result: ArenaResult, name: str, score: Score) -> list[str]:
    if is_concurrent(result, name):
        return ["", ""]
    return [score.early.in_words(), score.late.in_words()]


def _marked(result: ArenaResult, name: str) -> str:
    return f"`{name}` *" if is_concurrent(result, name) else f"`{name}`"


def is_concurrent(result: ArenaResult, name: str) -> bool:
    """Return whether a method of the result plays all tasks at the same time."""
    return {method.name: method.setting for method in result.methods}[name] == "concurrent"
