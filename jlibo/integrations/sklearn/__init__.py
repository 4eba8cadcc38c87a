"""A hyper-parameter search for scikit-learn that learns from past data sets. Requires the extra `sklearn`."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    message = "jlibo.integrations.sklearn needs scikit-learn: pip install 'jlibo[sklearn]'"
    raise ImportError(message) from error

from jlibo.integrations.sklearn.search import LifelongSearchCV as LifelongSearchCV
