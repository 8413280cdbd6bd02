"""Prompts of given lengths, and how long prompts and answers are.

Prompts are made of short, frequent English words, each of which is one token, with the space
before it, in nearly every vocabulary. So a prompt of n words has about n tokens for any server,
and no tokenizer is needed here; the server's usage says how many there really were.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from gearworks.load.trace import TraceRequest

WORDS = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car city community name president team minute idea kid body information back parent face others
level office door health person art war history party result change morning reason research girl
guy moment air teacher force education foot boy age policy music market sense nation plan
college interest death experience effect use class control care field development role effort
rate heart drug show leader light voice wife police mind price report decision son view
relationship town road arm difference value building action season society tax director position
player record paper space ground form event official matter center couple site project activity
star table need court oil situation cost industry figure street image phone data picture
practice piece land product doctor wall patient worker news test movie north love support
technology step baby computer type attention film tree source hair look century evidence window
culture chance energy period course summer plant opportunity term letter condition choice rule
south floor campaign material population call economy hospital church risk fire future bank
success fish
""".split()


@dataclass(frozen=True)
class Lengths:
    """A lognormal distribution of lengths in tokens, cut off at 1 and at `most`.

    median: half of the lengths are below it. sigma: the standard deviation of their logarithm;
    0 makes all lengths the median.
    """

    median: float
    sigma: float = 0.0
    most: int = 4096

    @classmethod
    def from_moments(cls, mean: float, deviation: float, most: int) -> "Lengths":
        """The lognormal distribution with this mean and standard deviation before the cut.

        >>> round(Lengths.from_moments(100.0, 100.0, 4096).median, 1)       # 100 / sqrt(2)
        70.7
        """
        variance = math.log(1 + (deviation / mean) ** 2)
        return cls(mean * math.exp(-variance / 2), math.sqrt(variance), most)

    def draw(self, random: Random) -> int:
        """One length.

        >>> Lengths(40).draw(Random(0))
        40
        """
        length = round(self.median * math.exp(self.sigma * random.gauss(0, 1)))
        return min(max(1, length), self.most)


@dataclass(frozen=True)
class Prefixes:
    """Documents, or system prompts, that many prompts begin with.

    share: of the requests that begin with one of them. tokens: the length of each. documents:
    how many there are; each is as likely as the others.
    """

    share: float = 0.0
    tokens: int = 0
    documents: int = 1


def requests(arrivals: Iterator[float], prompts: Lengths, answers: Lengths, prefixes: Prefixes,
             random: Random) -> Iterator[TraceRequest]:
    """A request for each arrival. `prompts` are the lengths of what follows a prefix.

    >>> next(requests(iter([2.5]), Lengths(40), Lengths(9), Prefixes(1.0, 300), Random(0)))
    TraceRequest(arrival=2.5, output_tokens=9, prompt_tokens=340, prompt=None, group='0',
                 prefix_tokens=300)
    """
    for arrival in arrivals:
        length, answer = prompts.draw(random), answers.draw(random)
        if random.random() < prefixes.share:
            group = str(random.randrange(prefixes.documents))
            yield TraceRequest(arrival, answer, prefixes.tokens + length, None, group,
                               prefixes.tokens)
        else:
            yield TraceRequest(arrival, answer, length)


def text(request: TraceRequest, seed: int, number: int) -> str:
    """The request's prompt.

    Prompts of one seed and one group share the words of their prefix. Their other words follow
    from the seed and the request's number, so that no two prompts share more than that.

    >>> first = text(TraceRequest(0, 1, 8, group="a", prefix_tokens=6), seed=0, number=0)
    >>> second = text(TraceRequest(0, 1, 9, group="a", prefix_tokens=6), seed=0, number=1)
    >>> first.split()[:6] == second.split()[:6], first.split()[6:] == second.split()[6:]
    (True, False)
    """
    if request.prompt:
        return request.prompt
    shared = _words(f"{seed} group {request.group}", request.prefix_tokens)
    own = _words(f"{seed} request {number}", request.prompt_tokens - request.prefix_tokens)
    return " ".join(shared + own)


def _words(seed: str, count: int) -> list[str]:
    return Random(seed).choices(WORDS, k=count)
