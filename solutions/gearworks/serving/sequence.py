"""One answer in the making, as the scheduler sees it: tokens, and how many are computed."""

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field

from gearworks.kv_cache import Prefix
from gearworks.serving.request import Request
from gearworks.speculative import Proposer


@dataclass(eq=False)
class Sequence:
    """Tokens that are to be in the cache, and how far the cache has come.

    There is no phase of prefill or of decoding: in every step a sequence catches up with its
    tokens, be it a prompt, what was generated before a preemption, or the one token that was
    just chosen.

    request, index: which of a request's answers it is. ids: the prompt and what was chosen so
    far. rank: the lower goes first, and no two are equal. limit: the longest that `ids` may
    get. guesses: tokens that may follow `ids`, to be computed with them; each is right or is
    forgotten; proposer: who makes them, if anybody does. num_computed_tokens: of `ids`, whose
    keys and values are in the blocks of block_table. running: whether it runs or waits.
    cached_tokens: of the prompt, found in blocks when it was admitted first; None before.
    prefix, kept_blocks: the first `kept_blocks` blocks of its table are known to the pool, and
    `prefix` is the last of them. hashes: of its full blocks, as far as they were needed.
    forked: the request's other answers have begun. told_prompt: a delta has told the
    log-probabilities of the prompt.
    """

    request: Request
    index: int
    ids: list[int]
    rank: tuple[int, int, int]
    limit: int
    guesses: list[int] = field(default_factory=list)
    proposer: Proposer | None = None
    num_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
    running: bool = False
    hashes: list[bytes] = field(default_factory=list)
    prefix: Prefix | None = None
    kept_blocks: int = 0
    forked: bool = False
    told_prompt: bool = False

    @property
    def name(self) -> str:
        """The answer's name in records."""
        return f"{self.request.id}/{self.index}"

    @property
    def num_pending_tokens(self) -> int:
        """How many tokens are to be computed before the next one can be chosen."""
        return len(self.ids) - self.num_computed_tokens

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def answers(self) -> int:
        """How many answers will run once this prompt is computed."""
        return 1 if self.forked else self.request.n

    def append(self, token: int) -> None:
        """The answer goes on with a token, which is to be computed next."""
        self.ids.append(token)

    def generated(self) -> Ids[int]:
        """What was chosen so far."""
        return self.ids[self.prompt_length:]
