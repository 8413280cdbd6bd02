"""What a judge remembers while it grades a class.

A class hands in the same answer many times: short ones are alike, and who hands in again has
changed one cell. The same code with the same seed gets the same report, so it is judged once.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable

from autograder.checking.draws import Draws
from autograder.checking.running import Report

MOST_REPORTS = 4096         # a report is some kilobytes


class Memory:
    """The last reports, and the cases that checks draw. reports: how many are kept."""

    def __init__(self, reports: int = MOST_REPORTS):
        self.draws = Draws()
        self._most = reports
        self._reports: OrderedDict[Hashable, Report] = OrderedDict()

    def report(self, told: Hashable, judged: Callable[[], Report]) -> Report:
        """The report of what is told, all that it follows from; where none is known, a new one.

        One that is no result, since the machine may be guilty, is not kept.
        """
        report = self._reports.get(told)
        if report is None:
            report = judged()
            if not report.is_final:
                return report
            self._reports[told] = report
            if len(self._reports) > self._most:
                self._reports.popitem(last=False)
        self._reports.move_to_end(told)
        return report
