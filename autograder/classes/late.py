"""What it costs to hand in late: percent of the points for every day begun, up to a limit."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gearworks.errors import UsageError

RULE = re.compile(r"(?P<percent>\d+(?:\.\d+)?)%/day(?:,max=(?P<most>\d+(?:\.\d+)?)%)?"
                  r"(?:,grace=(?P<grace>\d+)(?P<unit>min|h))?")


@dataclass(frozen=True)
class LatePolicy:
    """A rule.

    due: in UTC; None where nothing is due. percent: of the points, for each day begun; most: of
    the points, in all. grace: what is handed in so little late is in time.
    """

    due: datetime | None = None
    percent: float = 0.0
    most: float = 100.0
    grace: timedelta = timedelta()

    def penalty(self, submitted: datetime | None, points: float) -> float:
        """The points that are taken off. Without a time of submission, none.

        >>> rule = late_policy("10%/day,max=50%,grace=15min", "2026-03-01T12:00+00:00")
        >>> [rule.penalty(rule.due + timedelta(hours=hours), 80) for hours in (0.2, 1, 25, 999)]
        [0.0, 8.0, 16.0, 40.0]
        """
        if self.due is None or submitted is None:
            return 0.0
        late = submitted - self.due
        if late <= self.grace:
            return 0.0
        days = -(-late // timedelta(days=1))                                # rounded up
        return points * min(self.percent * days, self.most) / 100


on_time = LatePolicy()


def late_policy(rule: str, due: str) -> LatePolicy:
    """The policy of a rule such as "10%/day,max=50%,grace=15min", and of a time, in ISO 8601.

    A time without an offset is in this machine's time zone. Raises UsageError.
    """
    try:
        moment = datetime.fromisoformat(due).astimezone(UTC) if due else None
    except ValueError as error:
        raise UsageError(f"cannot read the time {due!r}", str(error),
                         "--due 2026-03-01T23:59, or with an offset: +01:00") from None
    if not rule:
        return LatePolicy(moment)
    found = RULE.fullmatch(rule.replace(" ", ""))
    if found is None or moment is None:
        raise UsageError(f"cannot apply the late rule {rule!r}",
                         "it needs --due" if found else "it is none that is known",
                         '--due 2026-03-01T23:59 --late "10%/day,max=50%,grace=15min"')
    unit = timedelta(hours=1) if found["unit"] == "h" else timedelta(minutes=1)
    return LatePolicy(moment, float(found["percent"]), float(found["most"] or 100),
                      int(found["grace"] or 0) * unit)
