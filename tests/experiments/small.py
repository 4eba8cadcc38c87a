"""Settings that make the registered experiments small, for tests."""

GLMNET = ["lifelong-glmnet", "lifelong-glmnet-practitioner"]
SMALL_GLMNET = {"num_features": "16", "num_tasks": "3", "horizon": "12"}
SMALL = {"num_features": "8", "support_size": "2", "num_tasks": "4", "horizon": "16"}
OFFLINE = SMALL | {"offline_rows": "6"}
