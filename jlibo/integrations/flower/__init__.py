"""Federated tuning with Flower as the engine. Requires the extra `federated`.

A server asks nodes for the votes of their finished tasks and gives them the latest elected support. What is
asked, sent, counted and elected is decided in `jlibo.federated` and `jlibo.tune.federated`; this package
translates it into messages, apps and processes of Flower.
"""

# pyright: reportMissingImports=false

try:
    import flwr as flwr
except ImportError as error:
    raise ImportError("jlibo.integrations.flower needs Flower: pip install 'jlibo[federated]'") from error

from jlibo.integrations.flower.certificates import Certificates as Certificates
from jlibo.integrations.flower.certificates import client_of as client_of
from jlibo.integrations.flower.certificates import make_certificates as make_certificates
from jlibo.integrations.flower.certificates import make_node_key as make_node_key
from jlibo.integrations.flower.local import LocalFederation as LocalFederation
from jlibo.integrations.flower.processes import Processes as Processes
