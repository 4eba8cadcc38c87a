from __future__ import annotations


try:
    from jlibo.integrations.optuna import LiBOSampler
except ImportError as error:
    raise ImportError("samplers/libo needs jlibo: pip install 'jlibo[optuna]'") from error


__all__ = ["LiBOSampler"]
