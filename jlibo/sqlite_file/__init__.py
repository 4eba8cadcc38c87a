"""Durable SQLite files: opening, checking, locking and writing them, for the tuner's memory and the ballot.

| module       | what is there                                                              |
|--------------|----------------------------------------------------------------------------|
| `errors`     | messages that name the file and say what to do                             |
| `format`     | application id and tables of each version; checks of both                  |
| `place`      | checks of a path before SQLite opens it                                    |
| `connection` | connections and transactions whose commits are on the disk                 |
| `file`       | an open file, safe for many threads, processes and forks                   |
| `checksum`   | checksum of a row                                                          |
"""
