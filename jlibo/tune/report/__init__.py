"""The report of a memory: one self-contained HTML page.

| here      | what it is                                                                    |
|-----------|-------------------------------------------------------------------------------|
| `curves`  | what the model believes of each task along each parameter                     |
| `content` | everything that the page shows, as plain values                               |
| `page`    | the page: the content and the assets in one file                              |
| `assets/` | the page's HTML, style and scripts, which load nothing from elsewhere         |
"""

from jlibo.tune.report.page import write_report as write_report
