"""Differential privacy of votes that are released after every task: calibration, and mechanisms."""

from jlibo.privacy.calibration import NEIGHBOURS as NEIGHBOURS
from jlibo.privacy.calibration import flip_epsilon as flip_epsilon
from jlibo.privacy.calibration import flip_probability as flip_probability
from jlibo.privacy.calibration import gaussian_delta as gaussian_delta
from jlibo.privacy.calibration import gaussian_epsilon as gaussian_epsilon
from jlibo.privacy.calibration import gaussian_mu as gaussian_mu
from jlibo.privacy.calibration import gnmax_epsilon as gnmax_epsilon
from jlibo.privacy.calibration import gnmax_norm as gnmax_norm
from jlibo.privacy.calibration import gnmax_scale as gnmax_scale
from jlibo.privacy.calibration import toeplitz_norm as toeplitz_norm
from jlibo.privacy.calibration import toeplitz_scale as toeplitz_scale
from jlibo.privacy.calibration import toeplitz_weights as toeplitz_weights
from jlibo.privacy.calibration import vote_norm as vote_norm
from jlibo.privacy.mechanisms import AbstractMechanism as AbstractMechanism
from jlibo.privacy.mechanisms import GNMaxNoise as GNMaxNoise
from jlibo.privacy.mechanisms import NoPrivacy as NoPrivacy
from jlibo.privacy.mechanisms import RandomisedResponse as RandomisedResponse
from jlibo.privacy.mechanisms import ToeplitzNoise as ToeplitzNoise
