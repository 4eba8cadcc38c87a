"""LiBO as an Optuna sampler. Needs the extra `optuna`."""

from jlibo.integrations.optuna.sampler import LiBOSampler as LiBOSampler
from jlibo.integrations.optuna.sampler import LiBOSamplerWarning as LiBOSamplerWarning
