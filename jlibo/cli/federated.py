"""The command line of federated runs: `jlibo federated show`."""

import argparse
from collections.abc import Iterable

from jlibo.cli.output import print_lines
from jlibo.federated import BallotFile, BallotRules
from jlibo.printable import printable


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `federated` and its actions to the commands of `jlibo`."""
    federated = commands.add_parser("federated", help="show the ballot of a federated run")
    actions = federated.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="print the rules, the elections and the clients of a ballot")
    show.add_argument("file", metavar="FILE", help="the ballot of a server")
    show.add_argument(
        "--exact", action="store_true", help="also print the exact counts, which privacy does not protect"
    )
    show.set_defaults(run=_show)


def _show(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    with BallotFile.open_existing(options.file, write=False) as ballot:
        rules, releases, clients = ballot.rules, ballot.releases(), ballot.votes_by_client()
        estimates, counts = ballot.estimates(), ballot.counts()
    console = Console(highlight=False)

    def show(line: str) -> None:
        # In a `Text`, brackets in names are not parsed as markup.
        console.print(Text(printable(line, max_length=None)), soft_wrap=True)

    def table(*headings: str) -> Table:
        made = Table(box=None, pad_edge=False)
        for heading in headings:
            is_number = heading in ("votes", "exact")
            made.add_column(heading, justify="right" if is_number else "left", overflow="fold")
        return made

    console.begin_capture()  # printed at the end by `print_lines`: rich would handle a failed write itself
    show(f"{options.file}: {len(releases)} of {rules.horizon} votes, of {len(clients)} clients")
    show(
        f"  {rules.num_kernels} kernels; elected with {rules.alpha:.0%} of the votes, from vote "
        f"{rules.quorum} on; at most {rules.max_selected} kernels a vote, {rules.max_votes} votes a client"
    )
    show(f"  {rules.num_explore} exploration steps in each task; {_privacy(rules)}")
    last = releases[-1].support if releases else range(rules.num_kernels)
    is_open = len(releases) < rules.quorum
    words = "all, before the first election" if is_open else _indices(last)
    show(f"  elected: {words}")
    if releases:
        console.print()
        kernels = table("kernel", "votes", *(["exact"] if options.exact else []), "elected")
        for kernel in sorted(range(rules.num_kernels), key=lambda one: -estimates[one]):
            elected = "yes" if kernel in last and not is_open else ""
            exact = [str(counts[kernel])] if options.exact else []
            kernels.add_row(str(kernel), f"{estimates[kernel]:.4g}", *exact, elected)
        console.print(kernels)
        console.print()
        changes = table("after votes", "elected")
        before = None
        for release in releases:
            if release.num_clients >= rules.quorum and release.support != before:
                changes.add_row(str(release.num_clients), _indices(release.support))
                before = release.support
        console.print(changes)
        console.print()
        voters = table("client", "votes")
        for client, number in clients.items():
            voters.add_row(Text(printable(client)), str(number))
        console.print(voters)
    print_lines(console.end_capture().splitlines())
    return 0


def _indices(kernels: Iterable[int]) -> str:
    return ", ".join(map(str, kernels)) or "none, so clients use all kernels"


def _privacy(rules: BallotRules) -> str:
    if rules.mechanism == "none":
        return "counted exactly, without privacy"
    if rules.mechanism == "local":
        return f"clients randomise each vote, epsilon {rules.epsilon:g}"
    noise = {"toeplitz": "correlated noise (Toeplitz)", "gnmax": "independent noise (GNMax)"}[rules.mechanism]
    return f"{noise}, epsilon {rules.epsilon:g}, delta {rules.delta:g}, {rules.neighbours} neighbours"
