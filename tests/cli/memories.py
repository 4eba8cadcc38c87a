"""A filled memory and one of its lines, for the tests of the memory's command line."""

from jlibo.tune.memory.lines import export_lines
from jlibo.tune.memory.memory import Memory
from jlibo.tune.space.space import Categorical, Float, SearchSpace

SPACE = SearchSpace(alpha=Float(0, 1), lam=Float(1e-4, 1e4, log=True), kind=Categorical(["a", "b"]))
LINE = {"task": "iris", "number": 0, "params": {"alpha": 0.5, "lam": 1.0, "kind": "a"}, "score": 1.5}
LINE |= {"state": "complete"}


def params(alpha=0.5, lam=1.0, kind="a"):
    return {"alpha": alpha, "kind": kind, "lam": lam}


def fill(memory):
    iris = memory.task("iris", budget=20, seed=11)
    memory.add_finished(iris.id, [(params(alpha=0.1 + 0.2, lam=1e-3 / 3), -1 / 3), (params(), None)])
    pending = memory.add_trial(iris.id, params(kind="b"), explored=True, owner="me")
    told = memory.add_trial(iris.id, params(alpha=1), explored=True, owner="me")
    memory.tell(told.id, 1e300)
    wine = memory.task("[bold]wine[/bold] ♥", source="added")
    memory.add_finished(wine.id, [(params(), 2.0)])
    return pending


def lines_of(path):
    with Memory.open_existing(path) as memory:
        return list(export_lines(memory))
