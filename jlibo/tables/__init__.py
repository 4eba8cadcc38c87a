"""Tables of recorded evaluations: the one that comes with the package, and readers of three file layouts."""

from jlibo.tables.csv_file import read_csv
from jlibo.tables.hpob import read_hpob
from jlibo.tables.random_bot import read_random_bot
from jlibo.tables.table import Table, load_table

__all__ = ["Table", "load_table", "read_csv", "read_hpob", "read_random_bot"]
