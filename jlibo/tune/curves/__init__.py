"""Learning curves of trials, and the rule that stops a trial early."""

from jlibo.tune.curves.rule import MedianRule as MedianRule
