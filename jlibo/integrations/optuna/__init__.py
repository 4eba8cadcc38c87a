"""An Optuna sampler that learns from past studies. Requires the extra `optuna`."""

try:
    import optuna as _optuna  # noqa: F401
except ImportError as error:
    raise ImportError("jlibo.integrations.optuna needs Optuna: pip install 'jlibo[optuna]'") from error

from jlibo.integrations.optuna.choice import LiBOSamplerWarning as LiBOSamplerWarning
from jlibo.integrations.optuna.sampler import LiBOSampler as LiBOSampler
