"""One answer in the making, as the scheduler sees it: tokens, and how many are computed."""

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field

from gearworks.kv_cache import Prefix
from gearworks.serving.request import Request


@dataclass(eq=False)
class Sequence:
    """Tokens that are to be in the cache, and how far the cache has come.

    There is no phase of prefill or of decoding: in every step a sequence catches up with its
    tokens, be it a prompt, what was generated before a preemption, or the one token that was
    just chosen.
    """

    request: Request
    index: int                    # which of the request's answers
    ids: list[int]                # the prompt and what was chosen so far
    rank: tuple[int, int, int]    # the lower goes first; no two are equal
    limit: int                    # the longest that `ids` may get
    # tokens that may follow `ids`, to be computed with them: each is right or is forgotten
    guesses: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0  # of `ids`; their keys and values are in the blocks
    block_table: list[int] = field(default_factory=list)
    cached_tokens: int | None = None    # of the prompt, found in blocks at the first admission
    running: bool = False
    # The chain of full blocks whose content is known to the pool, and the hashes so far.
    hashes: list[bytes] = field(default_factory=list)
    prefix: Prefix | None = None
    kept_blocks: int = 0          # the beginning of the block table that `prefix` stands for
    forked: bool = False          # the request's other answers have begun
    told_prompt: bool = False     # a delta has told the log-probabilities of the prompt

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
