"""The paper's experiments as data: what each is called, what it varies, and every number in it.

| setting             | paper (sections 6 and App. "Experiment Details")                             |
|---------------------|------------------------------------------------------------------------------|
| `lam`               | lambda of Meta-KGL                                                           |
| `lam_federated`     | lambda of F-Meta-KGL                                                         |
| `omega`, `alpha`    | omega = c_1 / 2, and the share of votes a kernel needs                       |
| `omega_federated`   | omega of F-Meta-KGL                                                          |
| `beta_min`          | c_1                                                                          |
| `norm_bound`        | B                                                                            |
| `noise_std`         | sigma                                                                        |
| `nu`                | nu_i, constant                                                               |
| `regulariser`       | lambda_ucb                                                                   |
| `horizon`           | n, steps of a task (of the test task, offline)                               |
| `num_tasks`         | m; not printed for the lifelong experiments: 20                              |
| `explore_scale`     | a factor on n_s, the forced exploration steps; 1 in the paper                |

An experiment ending in `-tuned` has the same name without it as its printed setting: there the printed
hyper-parameters do not give the paper's finding in our reading, and docs/results.md says why. The settings of
`lifelong-glmnet-practitioner` were chosen on the other half of the data sets (benchmarks/choose_glmnet.py).
"""

import dataclasses
import math
import numbers
import typing
from collections.abc import Mapping

from jlibo.checks import did_you_mean_or_known
from jlibo.printable import described, printable


class SettingError(ValueError):
    """A name or value that no experiment can take; the message says what would do."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One experiment. Floats are passed to the compiled program as data; the rest fixes its shape.

    Values are converted to the declared types of their fields and checked at construction.

    **Raises:** `SettingError` for a value that is of another kind, or out of range.
    """

    name: str
    summary: str
    kind: str = "lifelong"
    """"lifelong" or "offline"."""
    environment: str = "synthetic"
    """Where the tasks come from: "synthetic" or "glmnet"; see `worlds`."""
    half: str = "all"
    """Which of the table's data sets: "all", the "first" half or the "second"."""
    metric: str = "auc"
    """What a look-up answers."""
    rewards: str = "raw"
    """"raw", or "standardised" by each task's own."""
    features: str = "cosine"
    data: str = "exploration"
    """What the meta-learners look at: "exploration" or "all"."""
    lam_scaling: str = "constant"
    num_features: int = 50
    num_tasks: int = 20
    horizon: int = 100
    support_size: int = 5
    offline_rows: int = 10
    explore_scale: float = 1.0
    lam: float = 0.5
    lam_federated: float = 0.2
    omega: float = 0.25
    omega_federated: float = 0.25
    alpha: float = 0.25
    nu: float = 10.0
    regulariser: float = 0.1
    norm_bound: float = 10.0
    beta_min: float = 0.5
    noise_std: float = 0.1

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = _converted(field.name, getattr(self, field.name), _TYPES[field.name])
            object.__setattr__(self, field.name, value)
        _check(self)

    @property
    def agents(self) -> tuple[str, ...]:
        if self.kind == "offline":
            return ("oracle", "full", "meta-kgl", "f-meta-kgl")
        return ("oracle" if self.environment == "synthetic" else "random", "full", "libo", "flibo")

    def numbers(self) -> dict[str, float]:
        """The settings that are data to the compiled program."""
        return {name: getattr(self, name) for name, kind in _TYPES.items() if kind is float}

    def settings(self) -> dict[str, int | float | str]:
        """All settings, for the record."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if name not in ("name", "summary")}


_TYPES: dict[str, type] = typing.get_type_hints(Experiment)
"""The declared type of every field: str, int or float."""

_CHOICES = {
    "kind": ("lifelong", "offline"),
    "environment": ("synthetic", "glmnet"),
    "half": ("all", "first", "second"),
    "metric": ("auc", "accuracy", "logloss"),
    "rewards": ("raw", "standardised"),
    "features": ("cosine", "cosine2d", "cosine2d-grid", "cosine2d-effects", "legendre"),
    "data": ("exploration", "all"),
    "lam_scaling": ("constant", "sqrt"),
}


_KIND_WORDS = {float: "a number", int: "a whole number", str: "a word"}


def _converted(name: str, value: object, kind: type) -> int | float | str:
    """Return a setting's value as its declared type. Any real number will do for a float."""
    accepted = {float: numbers.Real, int: numbers.Integral, str: str}[kind]
    if isinstance(value, bool) or not isinstance(value, accepted):
        raise SettingError(f"'{name}' should be {_KIND_WORDS[kind]}, but got {described(value)}.")
    try:
        return kind(value)
    except OverflowError:
        raise SettingError(f"'{name}' should be at most {LARGEST:.6g}, the largest float32.") from None


def _parse(name: str, text: str, kind: type) -> int | float | str:
    """Return the value that `text` stands for."""
    try:
        return kind(text)
    except ValueError:
        raise SettingError(f"'{name}' should be {_KIND_WORDS[kind]}, but got '{_short(text)}'.") from None


def _short(text: object) -> str:
    return printable(text, max_length=60)


_RANGES = {
    "alpha": (0.0, 1.0),
    "lam": (0.0, float("inf")),
    "lam_federated": (0.0, float("inf")),
    "omega": (0.0, float("inf")),
    "omega_federated": (0.0, float("inf")),
    "nu": (0.0, float("inf")),
    "noise_std": (0.0, float("inf")),
    "beta_min": (0.0, float("inf")),
    "explore_scale": (0.0, float("inf")),
}
_POSITIVE = (
    "regulariser",
    "norm_bound",
    "num_features",
    "num_tasks",
    "horizon",
    "support_size",
    "offline_rows",
)


SMALLEST, LARGEST = 1.1754944e-38, 3.4028235e38
"""The range of float32: a number above becomes infinite there, one below becomes 0."""
MAX_SIZE = 2**31 - 1
"""Arrays are indexed by int32."""


def _check_representable(experiment: Experiment) -> None:
    """Every number must be one that the compiled program can take as it is, whatever the precision."""
    for name, value in experiment.settings().items():
        if isinstance(value, int) and not abs(value) <= MAX_SIZE:
            # Python does not print whole numbers of thousands of digits.
            got = value if abs(value) < 2**64 else f"one of {value.bit_length()} bits"
            raise SettingError(f"'{name}' should be a whole number up to {MAX_SIZE}, but got {got}.")
        if isinstance(value, float) and math.isfinite(value) and value != 0:
            if abs(value) > LARGEST:
                raise SettingError(
                    f"'{name}' should be at most {LARGEST:.6g}, the largest float32: "
                    f"{value:g} would be infinite."
                )
            if abs(value) < SMALLEST:
                raise SettingError(
                    f"'{name}' should be 0 or at least {SMALLEST:.6g}, the smallest float32: "
                    f"{value:g} would be 0."
                )


def _check(experiment: Experiment) -> None:
    _check_representable(experiment)
    for name, choices in _CHOICES.items():
        value = getattr(experiment, name)
        if value not in choices:
            raise SettingError(f"'{name}' should be one of {', '.join(choices)}, but got '{_short(value)}'.")
    if experiment.kind == "offline" and (experiment.environment, experiment.rewards) != ("synthetic", "raw"):
        raise SettingError(
            "'environment' and 'rewards' should be synthetic and raw offline, "
            f"but got {experiment.environment} and {experiment.rewards}."
        )
    if experiment.environment == "glmnet" and not experiment.features.startswith("cosine2d"):
        kinds = ", ".join(name for name in _CHOICES["features"] if name.startswith("cosine2d"))
        raise SettingError(f"'features' of glmnet should be one of {kinds}, but got {experiment.features}.")
    for name, (low, high) in _RANGES.items():
        value = getattr(experiment, name)
        if not low <= value <= high or value == float("inf"):
            upper = f" and <= {high:g}" if high != float("inf") else ""
            raise SettingError(f"'{name}' should be a number >= {low:g}{upper}, but got {value}.")
    for name in _POSITIVE:
        if not 0 < getattr(experiment, name) < float("inf"):
            raise SettingError(f"'{name}' should be above 0, but got {getattr(experiment, name)}.")
    if experiment.support_size > experiment.num_features:
        raise SettingError(
            f"'support_size' should be at most num_features = {experiment.num_features}, "
            f"but got {experiment.support_size}."
        )
    if experiment.beta_min * experiment.support_size**0.5 >= experiment.norm_bound:
        raise SettingError(
            "'beta_min' should be below norm_bound / sqrt(support_size), so that every kernel can matter, "
            f"but got {experiment.beta_min}."
        )


def _offline(name: str, features: str, summary: str) -> Experiment:
    return Experiment(
        name,
        summary,
        kind="offline",
        features=features,
        num_tasks=30,
        horizon=70,
        lam=0.25,
        lam_federated=0.015,
    )


_ALL = [
    _offline("offline-cosine", "cosine", "Fig. 2: test regret against offline tasks, 50 cosines"),
    _offline("offline-cosine2d", "cosine2d", "Fig. 5 left: the same with 50 two-dimensional cosines"),
    _offline("offline-legendre", "legendre", "Fig. 5 right: the same with 50 Legendre polynomials"),
    Experiment("lifelong-cosine", "Fig. 3 left, 6a: lifelong regret, 50 cosines, exploration data"),
    Experiment("lifelong-cosine-all", "Fig. 6b: the same, learning from all data", data="all"),
    Experiment(
        "lifelong-legendre", "Fig. 6c: 50 Legendre polynomials, exploration data", features="legendre"
    ),
    Experiment("lifelong-legendre-all", "Fig. 6d: the same, all data", features="legendre", data="all"),
    Experiment(
        "lifelong-glmnet",
        "Fig. 3 right: tuning GLMNET on 49 real data sets, as printed",
        environment="glmnet",
        features="cosine2d-grid",
        num_features=100,
        num_tasks=49,
        horizon=144,
        lam=0.015,
        lam_federated=2.6e-6,
        omega_federated=1e-6,
        noise_std=0.0,
    ),
]

_TUNED = [
    dataclasses.replace(
        _ALL[4],
        name="lifelong-cosine-all-tuned",
        summary="the same with a lam that keeps the true kernels",
        lam=0.05,
        lam_federated=0.02,
    ),
    dataclasses.replace(
        _ALL[6],
        name="lifelong-legendre-all-tuned",
        summary="the same with smaller lam, a tenth of the exploration, twice the tasks",
        num_tasks=40,
        explore_scale=0.1,
        lam=0.001,
        lam_federated=0.003,
    ),
    dataclasses.replace(
        _ALL[2],
        name="offline-legendre-tuned",
        summary="the same with a lam for features this small",
        lam=0.003,
        lam_federated=0.003,
    ),
]
_PRACTITIONER = dataclasses.replace(
    _ALL[-1],
    name="lifelong-glmnet-practitioner",
    summary="the same as one would do it: standardised, with main effects and a constant; half of the sets",
    half="second",
    num_tasks=23,
    rewards="standardised",
    features="cosine2d-effects",
    data="all",
    explore_scale=0.25,
    nu=4.0,
    lam=0.005,
    omega=0.01,
    lam_federated=0.005,
    omega_federated=0.01,
)
_ALL = sorted([*_ALL, *_TUNED, _PRACTITIONER], key=lambda experiment: experiment.name)

REGISTRY: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
"""Every experiment by its name."""


def find(name: str) -> Experiment:
    """The experiment called `name`."""
    if name not in REGISTRY:
        raise SettingError(
            f"There is no experiment '{_short(name)}'.{did_you_mean_or_known(name, REGISTRY)} "
            "`jlibo list` shows all."
        )
    return REGISTRY[name]


def override(experiment: Experiment, changes: Mapping[str, str]) -> Experiment:
    """`experiment` with settings replaced by values given as text, checked."""
    known = {name: kind for name, kind in _TYPES.items() if name not in ("name", "summary", "kind")}
    values = {}
    for name, text in changes.items():
        if name not in known:
            raise SettingError(f"There is no setting '{_short(name)}'.{did_you_mean_or_known(name, known)}")
        values[name] = _parse(name, text, known[name])
    return dataclasses.replace(experiment, **values)


def changed_settings(experiment: Experiment) -> dict[str, int | float | str]:
    """The settings in which `experiment` differs from the registered one of its name."""
    registered = REGISTRY.get(experiment.name, experiment).settings()
    return {name: value for name, value in experiment.settings().items() if value != registered[name]}
