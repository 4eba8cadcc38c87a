"""An experiment: an environment, base kernels, a policy, agents and a protocol, each as a `Spec`."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import jax
from jaxtyping import PRNGKeyArray

from jlibo.checks import did_you_mean_or_known
from jlibo.experiments.protocols import AbstractProtocol, World
from jlibo.experiments.spec import SettingError, Spec, Value, parsed
from jlibo.front_door import check_fields, front_door
from jlibo.meta import AbstractMetaLearner
from jlibo.printable import printable


@final
@dataclasses.dataclass(frozen=True)
class Analysis:
    """What an experiment computes and draws from its `ExperimentResult`, in place of the usual figure.

    **Arguments:**

    - `numbers`: function of the result that returns a dictionary for `summary.json`.
    - `draw`: function of these numbers and a title that returns a matplotlib figure.
    """

    numbers: Callable[[Any], dict[str, Any]]
    draw: Callable[[dict[str, Any], str], Any]

    def __post_init__(self):
        check_fields(self)


@final
@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment. Its settings are those of its specifications.

    Specifications with a setting of the same name share it: a change applies to all of them.

    **Arguments:**

    - `name`: the name of the experiment, such as "lifelong-cosine".
    - `summary`: what it is, in one line.
    - `environment`: `Spec` of a function `make_fn(features, *, key, ...)` that returns an environment.
    - `features`: `Spec` of features.
    - `policy`: `Spec` of a policy.
    - `agents`: a `Spec` for each agent by name: of a meta-learner, or of a function
      `make_fn(env, features, ...)` that returns one.
    - `protocol`: `Spec` of `Lifelong` or `Offline`.
    - `checks`: functions of all settings that raise a `SettingError` if these do not fit together.
    - `analysis`: numbers and a figure of its own, made from the result; None for the usual figure.

    **Raises:** `SettingError` if settings do not fit together.

    ```python
    import jlibo
    from jlibo.experiments import Experiment, Lifelong, Spec, run_experiment, summarise

    experiment = Experiment(
        "thompson",
        "Thompson sampling with 8 cosines",
        environment=Spec(jlibo.SyntheticEnv.draw, support_size=2),
        features=Spec(jlibo.Cosine, num_features=8),
        policy=Spec(jlibo.GPTS, noise_std=0.1),
        agents={"full": Spec(jlibo.FixedPrior), "libo": Spec(jlibo.MetaKGL, lam=0.5, omega=0.25)},
        protocol=Spec(Lifelong, num_tasks=3, horizon=10),
    )
    print(summarise(run_experiment(experiment, num_seeds=2))["agents"]["libo"]["lifelong_regret"])
    ```
    """

    name: str
    summary: str
    environment: Spec
    features: Spec
    policy: Spec
    agents: Mapping[str, Spec]
    protocol: Spec
    checks: tuple[Callable[[Mapping[str, Any]], None], ...] = ()
    analysis: Analysis | None = None

    def __post_init__(self):
        check_fields(self)
        if not self.agents:
            raise SettingError(f"'agents' of {printable(self.name)} should be at least one, but got none.")
        object.__setattr__(self, "agents", dict(self.agents))
        if any(isinstance(value, jax.Array) for value in self.settings().values()):
            return  # traced values cannot be compared
        known: dict[str, Value] = {}
        for spec in self._specs():
            for name, value in spec.settings().items():
                if known.setdefault(name, value) != value:
                    raise SettingError(
                        f"'{name}' should have one value, but got {known[name]} and {value}: give one of "
                        "them another name with `Spec.named`."
                    )
        for check in self.checks:
            check(known)

    def settings(self) -> dict[str, Value]:
        """Return all settings by name."""
        return {name: value for spec in self._specs() for name, value in spec.settings().items()}

    def __getitem__(self, name: str) -> Value:
        """Return the value of a setting."""
        return self.settings()[name]

    def data(self) -> dict[str, Value]:
        """Return the settings that are data to the compiled program."""
        return {name: value for spec in self._specs() for name, value in spec.data().items()}

    @front_door
    def changed(self, settings: Mapping[str, Any]) -> "Experiment":
        """Return the experiment with other values of settings, checked.

        **Arguments:**

        - `settings`: values by name. Text stands for a value of the setting's type, as on a command line.

        **Raises:** `SettingError` for an unknown name or an invalid value.
        """
        known = self.settings()
        values = {}
        for name, value in settings.items():
            if name not in known:
                short = printable(name, max_length=60)
                raise SettingError(f"There is no setting '{short}'.{did_you_mean_or_known(name, known)}")
            kind = next(spec.kind(name) for spec in self._specs() if name in spec.settings())
            values[name] = parsed(name, value, kind) if isinstance(value, str) else value
        return self._with(values)

    def _with(self, values: Mapping[str, Any]) -> "Experiment":
        return dataclasses.replace(
            self,
            environment=self.environment.changed(values),
            features=self.features.changed(values),
            policy=self.policy.changed(values),
            agents={name: agent.changed(values) for name, agent in self.agents.items()},
            protocol=self.protocol.changed(values),
        )

    def make_protocol(self) -> AbstractProtocol:
        """Return the protocol."""
        return self.protocol.make()

    @front_door
    def make_world(self, data: Mapping[str, Any] | None = None, *, key: PRNGKeyArray) -> World:
        """Return what the agents of one seed meet.

        **Arguments:**

        - `data`: values of the settings that are data, which may be traced; by default the experiment's own.
        - `key`: the key of the seed, `jax.random.fold_in(jax.random.key(0), seed)` in `jlibo reproduce`.
        """
        one = self if data is None else self._with(data)
        env_key, run_key = jax.random.split(key)
        features = one.features.make()
        env = one.environment.make(features, key=env_key)
        learners = {
            name: agent.make() if _is_learner(agent) else agent.make(env, features)
            for name, agent in one.agents.items()
        }
        return World(env, features, one.policy.make(), learners, run_key)

    def program_name(self) -> str | None:
        """Return a text that is equal for experiments with equal programs.

        Returns None if the experiment uses code from outside of jlibo, whose changes would not be noticed.
        """
        for spec in self._specs():
            if any(fn.__module__.partition(".")[0] != "jlibo" for fn in spec.callables()):
                return None
        agents = ", ".join(f"{name}: {agent.description()}" for name, agent in self.agents.items())
        rest = (self.environment, self.features, self.policy, self.protocol)
        return f"{' '.join(spec.description() for spec in rest)} {{{agents}}}"

    def _specs(self) -> Iterator[Spec]:
        # The order of the settings in tables, and in the names of runs.
        yield from (self.protocol, self.features, self.environment, self.policy, *self.agents.values())


def _is_learner(agent: Spec) -> bool:
    return isinstance(agent.make_fn, type) and issubclass(agent.make_fn, AbstractMetaLearner)
