"""Scikit-learn models tuned on real data sets by `jlibo.Tuner`, Optuna and random search; see `__main__`.

| module        | what it contains                                                                           |
|---------------|--------------------------------------------------------------------------------------------|
| `data`        | the data sets as fixed, standardised folds                                                 |
| `models`      | the models: their search spaces, and which parameters matter in a configuration            |
| `evaluations` | the cross-validated score of a configuration, stored in a file                             |
| `methods`     | the tuners: jlibo with and without a past, Optuna's TPE and GPSampler, random search       |
| `report`      | scores below the best one seen, paired differences, tables                                 |
| `record`      | the scores of a whole grid of SVC configurations, as a table                               |
"""
