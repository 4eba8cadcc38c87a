"""Action sets: what can be played in a step, as feature vectors. One file a kind of set, one interface."""

from jlibo.actions.ball import Ball as Ball
from jlibo.actions.ball import Ellipsoid as Ellipsoid
from jlibo.actions.base import AbstractActionSet as AbstractActionSet
from jlibo.actions.base import Action as Action
from jlibo.actions.box import BoxActions as BoxActions
from jlibo.actions.confidence import upper_confidence as upper_confidence
from jlibo.actions.finite import FiniteActions as FiniteActions
