"""The federated vote without an engine: messages, and the server's ballot in a file."""

from jlibo.federated.ballot import BallotFile as BallotFile
from jlibo.federated.ballot import BallotFileError as BallotFileError
from jlibo.federated.ballot import BallotMismatch as BallotMismatch
from jlibo.federated.ballot import Reception as Reception
from jlibo.federated.ballot import Release as Release
from jlibo.federated.ballot import VoteRefused as VoteRefused
from jlibo.federated.messages import MAX_KERNELS as MAX_KERNELS
from jlibo.federated.messages import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from jlibo.federated.messages import MAX_RECEIPTS as MAX_RECEIPTS
from jlibo.federated.messages import MAX_VOTE_BYTES as MAX_VOTE_BYTES
from jlibo.federated.messages import PROTOCOL as PROTOCOL
from jlibo.federated.messages import Announcement as Announcement
from jlibo.federated.messages import MessageError as MessageError
from jlibo.federated.messages import Receipt as Receipt
from jlibo.federated.messages import Vote as Vote
from jlibo.federated.messages import new_task_id as new_task_id
from jlibo.federated.rules import BallotRules as BallotRules
