"""The server's ballot: votes, noise and releases in one SQLite file that outlives the process.

| here        | paper                                                                                   |
|-------------|-----------------------------------------------------------------------------------------|
| a vote      | J_hat_s^(client), the kernels that client s selected                                    |
| a release   | J_hat_s: kernels with at least alpha * s votes, by exact or by noisy counts             |
| `num_votes` | s                                                                                       |

A vote is on the disk, with the noise drawn for it and the support that follows, before `cast` returns. A vote
counts once: sent again, it changes nothing. Several processes may use one file, and several threads one
`BallotFile`.
"""

import os
import sqlite3
from collections.abc import Iterable
from typing import Literal, NamedTuple, final

from jlibo.federated.ballot_format import BallotFileError as BallotFileError
from jlibo.federated.ballot_format import BallotMismatch as BallotMismatch
from jlibo.federated.ballot_format import VoteRow, insert_vote, kind, read_rules, read_votes
from jlibo.federated.election import Tally
from jlibo.federated.messages import Announcement, MessageError, Receipt, Vote
from jlibo.federated.rules import BallotRules
from jlibo.front_door import front_door
from jlibo.printable import printable
from jlibo.sqlite_file.file import SqliteFile
from jlibo.version import __version__

LONGEST_CLIENT = 500
"""Largest length of the identity of a client."""

CastResult = Literal["counted", "repeated"]


class VoteRefused(ValueError):
    """A vote does not follow the rules of the ballot. It will not be counted, and nothing has changed."""


@final
class Release(NamedTuple):
    """What was published after a vote.

    - `num_clients`: number of votes so far.
    - `support`: the elected kernels. Before the quorum, all of them.
    """

    num_clients: int
    support: tuple[int, ...]


@final
class Reception(NamedTuple):
    """What became of the votes of a client.

    - `receipt`: the votes that the client need not send again: counted, or refused for good.
    - `num_counted`: number of votes that were counted now.
    - `refusals`: why votes were refused, as sentences.
    """

    receipt: Receipt
    num_counted: int
    refusals: tuple[str, ...]


@final
class BallotFile:
    """Votes of clients in one SQLite file; made by `BallotFile.open` or `BallotFile.open_existing`.

    Any method may raise a `BallotFileError` if the file is damaged, locked for more than 30 s, moved, not
    writable or closed.

    - `path`: the path of the file; None for a ballot in RAM.
    - `rules`: the rules of the ballot.

    ```python
    from jlibo.federated import BallotFile, BallotRules, Vote, new_task_id

    rules = BallotRules(num_kernels=20, alpha=0.25, horizon=1000, num_explore=10, quorum=1)
    with BallotFile.open("ballot.db", rules) as ballot:
        vote = Vote(new_task_id(), (2, 5))
        assert ballot.cast("hospital A", vote) == "counted"
        assert ballot.cast("hospital A", vote) == "repeated"
        assert ballot.announcement().support == (2, 5)
    ```
    """

    path: str | None
    rules: BallotRules

    def __init__(self, file: SqliteFile[sqlite3.Connection]):
        self._file = file
        self.path = file.path
        with file.reading() as database:
            self.rules = read_rules(database)
        self._tally = Tally(self.rules)

    @classmethod
    @front_door
    def open(
        cls, path: str | os.PathLike[str] | None, rules: BallotRules, *, file_mode: int = 0o600
    ) -> "BallotFile":
        """Open the ballot at `path`, or create one if the file is missing or empty.

        **Arguments:**

        - `path`: the path of the file; None for a ballot in RAM.
        - `rules`: the rules; those of an existing ballot must be the same.
        - `file_mode`: the permissions of a new file. By default only the user may read and write it: it holds
          the votes of each client.

        **Returns:** a `BallotFile`, which is also a context manager that closes the file.

        **Raises:**

        - `BallotMismatch`: the ballot has other rules. It is unchanged.
        - `BallotFileError`: the file is not a ballot, is damaged or cannot be written. It is unchanged.
        """
        meta = {"rules": rules.to_json(), "jlibo": __version__}
        ballot = cls._opened(SqliteFile(_full_path(path), kind(), new_meta=meta, file_mode=file_mode))
        differences = rules.differences(ballot.rules)
        if differences:
            ballot.close()
            raise BallotMismatch(
                f"'{printable(path)}' has other rules, which cannot change after the first vote: "
                f"{'; '.join(differences)}. Open it with its own rules, or give another path."
            )
        return ballot

    @classmethod
    @front_door
    def open_existing(cls, path: str | os.PathLike[str], *, write: bool = True) -> "BallotFile":
        """Open an existing ballot with the rules that it has.

        **Arguments:**

        - `path`: the path of the file.
        - `write`: if False, the file need only be readable.

        **Raises:**

        - `BallotFileError`: there is no file, or it is not a ballot, is damaged, or cannot be written while
          `write` is True.
        """
        return cls._opened(SqliteFile(_full_path(path), kind(), write=write))

    @classmethod
    def _opened(cls, file: SqliteFile[sqlite3.Connection]) -> "BallotFile":
        try:
            return cls(file)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        """Close the file. The ballot cannot be used afterwards; closing it again has no effect."""
        self._file.close()

    def __enter__(self) -> "BallotFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- voting ---------------------------------------------------------------------------------------------

    @front_door
    def cast(self, client: str, vote: Vote | bytes) -> CastResult:
        """Count a vote; it is on the disk, with its release, when this returns.

        **Arguments:**

        - `client`: the identity of the client, which the transport has authenticated.
        - `vote`: the vote, or the bytes of one.

        **Returns:** "counted"; or "repeated" if the same vote of this client was counted before, in which
        case nothing changes.

        **Raises:**

        - `MessageError`: the bytes are not a vote.
        - `VoteRefused`: the vote has too many indices or one that is not a kernel; its task was voted for by
          another client, or otherwise; the client has no vote left; or the ballot is closed.
        """
        _check_client(client)
        vote = Vote.from_bytes(vote) if isinstance(vote, bytes) else vote
        self._check_indices(vote)
        with self._file.writing() as database:
            for row in read_votes(database, self.rules, "task = ?", vote.task):
                if row.client != client:
                    raise VoteRefused(f"task {vote.task} is that of another client: a task votes once.")
                if row.selected != vote.selected:
                    raise VoteRefused(f"task {vote.task} has voted, with other indices: a task votes once.")
                return "repeated"
            num_votes = self._tally.refresh(database)
            if num_votes >= self.rules.horizon:
                raise VoteRefused(f"the ballot is closed: it has its {self.rules.horizon} votes.")
            (num_own,) = database.execute("SELECT COUNT(*) FROM votes WHERE client = ?", (client,)).fetchone()
            if num_own >= self.rules.max_votes:
                raise VoteRefused(f"the client has cast its {self.rules.max_votes} vote(s): no more count.")
            noisy, support = self._tally.elect(vote.selected)
            insert_vote(database, VoteRow(num_votes + 1, client, vote.task, vote.selected, noisy, support))
        return "counted"

    @front_door
    def receive(self, client: str, votes: Iterable[Vote | bytes]) -> Reception:
        """Cast several votes of a client, each on its own, and return what became of them."""
        done, num_counted, refusals = [], 0, []
        for one in votes:
            try:
                vote = Vote.from_bytes(one) if isinstance(one, bytes) else one
                done += [vote.task] if vote.task not in done else []
                num_counted += self.cast(client, vote) == "counted"
            except (MessageError, VoteRefused) as error:
                refusals.append(str(error))
        return Reception(Receipt(tuple(done)), num_counted, tuple(refusals))

    def _check_indices(self, vote: Vote) -> None:
        num, most = len(vote.selected), self.rules.max_indices
        if num > most:
            raise VoteRefused(f"a vote should have at most {most} indices, but got {num}.")
        if num and vote.selected[-1] >= self.rules.num_kernels:
            raise VoteRefused(
                f"an index should be that of one of {self.rules.num_kernels} kernels, but got "
                f"{vote.selected[-1]}: the search space of the client is another one."
            )

    # --- results --------------------------------------------------------------------------------------------

    def announcement(self) -> Announcement:
        """Return what clients need: the last release, and the number of exploration steps."""
        with self._file.reading() as database:
            rows = read_votes(database, self.rules, "number = (SELECT MAX(number) FROM votes)")
        release = self._release(rows[-1]) if rows else Release(0, self._all_kernels)
        rules = self.rules
        return Announcement(rules.num_kernels, release.support, rules.num_explore, release.num_clients)

    def releases(self) -> list[Release]:
        """Return what was published after each vote, in order."""
        with self._file.reading() as database:
            return [self._release(row) for row in read_votes(database, self.rules)]

    def counts(self) -> tuple[int, ...]:
        """Return the exact number of votes for each kernel. It is not private: keep it on the server."""
        with self._file.reading() as database:
            rows = read_votes(database, self.rules)
        chosen = [index for row in rows for index in row.selected]
        return tuple(chosen.count(index) for index in range(self.rules.num_kernels))

    def estimates(self) -> tuple[float, ...]:
        """Return the number of votes for each kernel as the mechanism releases it, which decides."""
        with self._file.reading() as database:
            self._tally.refresh(database)
            return self._tally.estimates()

    def votes_by_client(self) -> dict[str, int]:
        """Return the number of votes of each client."""
        question = "SELECT client, COUNT(*) FROM votes GROUP BY client ORDER BY MIN(number)"
        with self._file.reading() as database:
            return dict(database.execute(question).fetchall())

    @property
    def num_votes(self) -> int:
        """Number of votes that were counted."""
        with self._file.reading() as database:
            return database.execute("SELECT COUNT(*) FROM votes").fetchone()[0]

    @property
    def _all_kernels(self) -> tuple[int, ...]:
        return tuple(range(self.rules.num_kernels))

    def _release(self, row: VoteRow) -> Release:
        return Release(row.number, row.support if row.number >= self.rules.quorum else self._all_kernels)


def _check_client(client: str) -> None:
    if not client.strip() or len(client) > LONGEST_CLIENT:
        raise VoteRefused(
            f"the identity of a client should be a text of 1 to {LONGEST_CLIENT} characters, but got "
            f"'{printable(client)}'."
        )
    try:
        client.encode()
    except UnicodeEncodeError:
        raise VoteRefused("the identity of a client should be a text that UTF-8 can write.") from None


def _full_path(path: str | os.PathLike[str] | None) -> str | None:
    # Absolute, so that the same file is found after a change of the working directory or a fork.
    return None if path is None or path == ":memory:" else os.path.abspath(os.fsdecode(path))
