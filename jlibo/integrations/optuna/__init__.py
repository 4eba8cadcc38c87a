"""An Optuna sampler that learns from past studies. Requires the extra `optuna`."""

from jlibo.integrations.optuna.sampler import LiBOSampler as LiBOSampler
from jlibo.integrations.optuna.sampler import LiBOSamplerWarning as LiBOSamplerWarning
