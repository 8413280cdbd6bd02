"""Sphinx extension: search finds words of Chinese, Japanese and Korean, without spaces.

A run of such characters is indexed by its characters and by its pairs of neighbours; a query is
split into the pairs.
"""

import re

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_RUNS = re.compile(f"[{CJK}]+|[^{CJK}]+")


class BigramSearch(SearchEnglish):
    """English, with CJK characters in pairs."""

    # `var`, since searchtools.js declares the same name with it.
    js_splitter_code = """
var splitQuery = (query) => query
  .split(/[^\\p{Letter}\\p{Number}_\\p{Emoji_Presentation}]+/gu)
  .flatMap((word) => word.match(/[CJK]+|[^CJK]+/gu) || [])
  .flatMap((run) => /^[CJK]{3,}$/u.test(run)
    ? Array.from(run).slice(1).map((c, i) => Array.from(run)[i] + c) : [run]);
""".replace("CJK", CJK)

    def split(self, input: str) -> list[str]:
        """The words that a text is indexed by.

        >>> BigramSearch({}).split("llama 推理引擎")
        ['llama', '推', '理', '引', '擎', '推理', '理引', '引擎']
        """
        words = []
        for run in (run for word in super().split(input) for run in _RUNS.findall(word)):
            words += ([*run, *(a + b for a, b in zip(run, run[1:]))]
                      if re.match(f"[{CJK}]", run) else [run])
        return words


def setup(app: Sphinx) -> dict:
    app.add_search_language(BigramSearch)      # takes the place of English
    return {"parallel_read_safe": True, "parallel_write_safe": True}
