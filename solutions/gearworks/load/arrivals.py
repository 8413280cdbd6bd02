"""When requests arrive, in seconds after the first one.

Independent users make a Poisson process: the gaps are exponential. What services really see
comes in bursts, which gaps from a gamma distribution have when its shape is below 1.
"""

import math
from collections.abc import Iterator
from random import Random


def arrivals(rate: float, burstiness: float, random: Random) -> Iterator[float]:
    """Endless arrivals, `rate` a second on average; the first at 0.

    burstiness: the shape of the gamma distribution of the gaps, as in `vllm bench serve`. 1 is
    a Poisson process, less is burstier, more is more regular. The gaps' standard deviation is
    1 / sqrt(burstiness) of their mean. rate: infinity for all at once.

    >>> times = arrivals(math.inf, 1.0, Random(0))
    >>> next(times), next(times)
    (0.0, 0.0)
    """
    time = 0.0
    while True:
        yield time
        if math.isfinite(rate):
            time += random.gammavariate(burstiness, 1 / (rate * burstiness))
