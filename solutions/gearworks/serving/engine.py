"""Many requests at once: one forward pass a step, whoever they are and wherever they stand.

A step asks the scheduler which tokens are to be computed, runs the model over all of them, and
hands each answer the logits of its own rows. Answers that are finished leave, and their blocks
are free for the next step.

Shapes: T tokens of a step, V vocabulary.
"""

import time
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from itertools import accumulate

import numpy as np

from gearworks.config import ModelConfig
from gearworks.decoding import room_for
from gearworks.errors import ModelError
from gearworks.products import fixed_shapes
from gearworks.kv_cache import BlockPool
from gearworks.language_model import LanguageModel
from gearworks.sampling import TokenLogprob, logprobs
from gearworks.serving.answer import Answer, failure
from gearworks.serving.paged_cache import bytes_per_token, memory_for
from gearworks.serving.quantized_paged import QuantizedPagedKVCache, paged_bytes_per_token
from gearworks.serving.record import Row, StepRecord
from gearworks.serving.request import Delta, Request
from gearworks.serving.scheduler import Plan, Scheduler
from gearworks.serving.sequence import Sequence
from gearworks.speculative import BackOff, NgramProposer

BLOCK_SIZE = 64             # tokens; larger ones waste more, smaller ones are more calls
KV_CACHE_BYTES = 2**30
KV_CACHE_BITS = {"float32": None, "int8": 8, "int4": 4}
RECORDS = 4096              # steps whose records are kept
# A request of the next lower priority is overtaken by those that come so many requests later,
# and by no others: it waits, but not for ever.
PATIENCE = 1000


class LLMEngine:
    """A model that answers many requests at once. Not to be used from several threads."""

    def __init__(self, language_model: LanguageModel, *, max_model_len: int | None = None,
                 block_size: int = BLOCK_SIZE, num_blocks: int | None = None,
                 max_num_batched_tokens: int = 512, max_num_seqs: int = 64,
                 enable_prefix_caching: bool = True, speculative_tokens: int = 0,
                 batch_invariant: bool = False, kv_cache_dtype: str = "float32"):
        """max_model_len: the longest prompt with its answer, in tokens; by default what the
        model was made for, or what the blocks have room for. num_blocks: of the KV cache, by
        default as many as fit into 1 GiB, or one sequence needs. max_num_batched_tokens: of a
        step. max_num_seqs: answers that run at once. speculative_tokens: how many tokens are
        guessed ahead for each answer at most, by n-grams of its own text, and fewer where they
        fail; the answers do not change.
        batch_invariant: a request's logits have the same bits alone and in any batch, which
        costs speed; not on backends of other products. kv_cache_dtype: float32, or int8 or
        int4 for a cache in fewer bits, where the answers change a little.
        Raises ModelError for sizes that make no sense, or that memory has no room for.
        """
        model = language_model.model
        if batch_invariant and not getattr(model, "has_fixed_shapes", True):
            raise ModelError("cannot start the engine",
                             "this backend has products of other shapes in every batch",
                             "leave batch_invariant out")
        for name, value, least in (
                ("block_size", block_size, 1), ("max_num_seqs", max_num_seqs, 1),
                ("max_num_batched_tokens", max_num_batched_tokens,
                 max_num_seqs + 2 * block_size * batch_invariant),
                ("max_model_len", max_model_len, 2), ("num_blocks", num_blocks, 1),
                ("speculative_tokens", speculative_tokens, 0)):
            if value is not None and value < least:
                raise ModelError("cannot start the engine", f"{name} is {value}",
                                 f"give a value of at least {least}")
        if kv_cache_dtype not in KV_CACHE_BITS:
            raise ModelError("cannot start the engine", f"kv_cache_dtype is {kv_cache_dtype!r}",
                             f"choose one of {', '.join(KV_CACHE_BITS)}")
        bits = KV_CACHE_BITS[kv_cache_dtype]
        if bits is not None and hasattr(model, "new_paged_cache"):
            raise ModelError("cannot start the engine",
                             f"this backend keeps its own memory, and not as {kv_cache_dtype}",
                             "leave kv_cache_dtype out, or take the engine numpy or exact")
        longest = model_len(model.config, max_model_len)
        if num_blocks is None:
            block_bytes = block_size * (bytes_per_token(model.config) if bits is None
                                        else paged_bytes_per_token(model.config, bits))
            num_blocks = max(KV_CACHE_BYTES // block_bytes, -(-longest // block_size))
        self.language_model = language_model
        self.model = model
        self.max_model_len = min(longest, num_blocks * block_size)
        self.max_num_seqs = max_num_seqs
        self.speculative_tokens = speculative_tokens
        self._unused_rng = np.random.default_rng(0)      # who copies a text draws nothing
        self.batch_invariant = batch_invariant
        self.memory = (memory_for(model, num_blocks, block_size) if bits is None else
                       QuantizedPagedKVCache(model.config, num_blocks, block_size, bits))
        self.pool = BlockPool(num_blocks, block_size)
        self.scheduler = Scheduler(self.pool, max_num_batched_tokens=max_num_batched_tokens,
                                   max_num_seqs=max_num_seqs,
                                   enable_prefix_caching=enable_prefix_caching,
                                   tiled=batch_invariant)
        self.records: deque[StepRecord] = deque(maxlen=RECORDS)
        self._answers: dict[str, dict[int, tuple[Sequence, Answer]]] = {}
        self._prompt_logprobs: dict[str, list[TokenLogprob | None]] = {}
        self._deltas: list[Delta] = []              # what `step` has not returned yet
        self._arrivals = self._steps = 0

    def add_request(self, request: Request) -> None:
        """Let a request wait for its turn. Its deltas come from `step`.

        Raises ModelError, at once, for what can never run: an empty prompt, one that is longer
        than the context or the memory, ids that the vocabulary does not have, more answers than
        run at once. Raises ValueError for an id that is in use.
        """
        if request.id in self._answers:
            raise ValueError(f"there is a request {request.id} already")
        if request.n > self.max_num_seqs:
            raise ModelError("cannot answer this request", f"n is {request.n}",
                             f"this engine runs {self.max_num_seqs} answers at once; ask for "
                             "fewer")
        ids, vocabulary = list(request.prompt_ids), self.model.config.vocab_size
        wanted = self.max_model_len if request.max_tokens is None else request.max_tokens
        room = room_for(ids, wanted, self.max_model_len)
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise ModelError("cannot run the model on these token ids",
                             f"they go from {min(ids)} to {max(ids)}, and the vocabulary has "
                             f"{vocabulary}", "does the tokenizer belong to this model?")
        self._arrivals += 1
        rank = self._arrivals + PATIENCE * request.priority, self._arrivals, 0
        sequence = Sequence(request, 0, ids, rank, limit=len(ids) + room)
        self._answers[request.id] = {0: (sequence, Answer(sequence, self.language_model))}
        self.scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """End all answers of a request; their blocks are free when this returns, and no delta
        comes any more. An id that is unknown, or was finished, is no error."""
        for sequence, answer in self._answers.pop(request_id, {}).values():
            self.scheduler.remove(sequence)
            answer.abort()
        self._prompt_logprobs.pop(request_id, None)
        self._deltas = [delta for delta in self._deltas if delta.request_id != request_id]

    def has_unfinished(self) -> bool:
        """Whether there is anything to do for `step`."""
        return bool(self._answers or self._deltas)

    def step(self) -> list[Delta]:
        """Compute the next tokens of all that run, in one forward pass.

        First every answer guesses (`guess_ahead`), then `self.scheduler.schedule()` makes a
        plan. Each of `plan.rows` is a sequence and its number of tokens in this step. If there
        are any: `forward(plan)` gives a list with the logits of each row, and row by row, in
        the plan's order, `hand_over` takes the sequence, the number, its logits, and one list
        for the whole step, to which it adds the names of answers that end. What is new gathers
        in `self._deltas`.

        Then the step is put on record: as `record(plan)` has it before the forward pass, and
        with (`replace`) finished, those names; generated, the number of `ids` in all deltas;
        model_seconds, of the forward pass alone; seconds, of the whole step. `self.records`
        gets it, and `self._steps`, the next one's number, counts on.

        Returns the deltas, in any order, and keeps none of them; an answer that fails has one
        with its error, and the others go on. Where the plan has no rows, the model is not
        asked, and nothing is put on record.

        Whatever the forward pass raises (an error, Ctrl-C) goes on to the caller. Nobody knows
        then which blocks were copied, so all rows' sequences wait to be computed again:
        `self.scheduler.preempt(sequence, plan)`. `step` can be called again, and nothing is
        lost. (What interrupts `hand_over` goes on to the caller, too: it has aborted the
        request whose token was being chosen, and whoever comes after it is computed again.)

        >>> from gearworks.tokenizer import Tokenizer
        >>> from gearworks.vocabularies.vocabulary import Vocabulary
        >>> class OneMore:                            # a model: after id n comes n + 1
        ...     config = ModelConfig(
        ...         "LlamaForCausalLM", vocab_size=4, hidden_size=2, intermediate_size=2,
        ...         num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        ...         head_dim=2, max_position_embeddings=9, rms_norm_eps=1e-5, rope_theta=1e4,
        ...         tie_word_embeddings=True)
        ...     def forward(self, input_ids, positions, batch, logits_at):
        ...         return np.eye(4, dtype=np.float32)[np.asarray(input_ids)[logits_at] + 1]
        >>> tokenizer = Tokenizer(Vocabulary({"a": 0, "b": 1, "c": 2, "d": 3}, {}))
        >>> engine = LLMEngine(LanguageModel(OneMore(), tokenizer, {}, frozenset([3])),
        ...                    num_blocks=4)
        >>> engine.add_request(Request([0], id="a"))
        >>> [[(delta.text, delta.finish_reason) for delta in engine.step()] for _ in range(3)]
        [[('b', None)], [('c', None)], [('', 'stop')]]
        >>> len(engine.records), engine.step()
        (3, [])
        """
        started = time.perf_counter()
        self.guess_ahead()
        plan = self.scheduler.schedule()
        if plan.rows:
            record = self.record(plan)
            model_started = time.perf_counter()
            try:
                logits = self.forward(plan)
            except BaseException:
                for sequence, _ in plan.rows:
                    self.scheduler.preempt(sequence, plan)
                raise
            model_seconds = time.perf_counter() - model_started
            finished: list[str] = []
            for (sequence, count), rows in zip(plan.rows, logits):
                self.hand_over(sequence, count, rows, finished)
            self.records.append(replace(
                record, finished=tuple(finished), model_seconds=model_seconds,
                generated=sum(len(delta.ids) for delta in self._deltas),
                seconds=time.perf_counter() - started))
            self._steps += 1
        deltas, self._deltas = self._deltas, []
        return deltas

    def guess_ahead(self) -> None:
        """Let every running answer guess how its text goes on, as far as it may go, and as far
        as its guesses held of late."""
        for sequence in self.scheduler.running:
            room = min(self.speculative_tokens, sequence.limit - len(sequence.ids) - 1)
            if room > 0 and sequence.num_pending_tokens == 1:
                if sequence.proposer is None:
                    sequence.proposer = BackOff(NgramProposer(), self.speculative_tokens)
                sequence.guesses = sequence.proposer.propose(sequence.ids, room,
                                                             self._unused_rng).ids[:room]

    def forward(self, plan: Plan) -> list[np.ndarray]:
        """Run the model over a step's tokens, after the copies that they need.

        Returns for each row of the plan the logits that are wanted of it, (rows, V): after the
        last of the sequence's tokens and after each guess, and after all tokens of a prompt
        whose log-probabilities are asked for.
        """
        for source, target in plan.copies:
            self.memory.copy_block(source, target)
        ids, positions, logits_at, borders = [], [], [], [0]
        for sequence, count in plan.rows:
            start = sequence.num_computed_tokens
            first = max(start, self.first_wanted(sequence))
            logits_at += range(len(ids) + first - start, len(ids) + count)
            borders.append(len(logits_at))
            ids += [*sequence.ids[start:], *sequence.guesses][:count]
            positions += range(start, start + count)
        tiles = [self.scheduler.tiles(sequence, count) for sequence, count in plan.rows]
        row_counts = [count for counts in tiles for count in counts]
        batch = self.memory.batch(
            [sequence.block_table for (sequence, _), counts in zip(plan.rows, tiles)
             for _ in counts],
            [sequence.num_computed_tokens + before for (sequence, _), counts
             in zip(plan.rows, tiles) for before in accumulate(counts[:-1], initial=0)],
            row_counts, self.batch_invariant)
        # which rows of a tile meet in an expert is up to them: there each is alone
        groups = row_counts if self.model.config.experts is None else [1] * len(ids)
        shapes = fixed_shapes(groups) if self.batch_invariant else nullcontext()
        # broken weights show in the logits, and `choose` refuses those
        with np.errstate(all="ignore"), shapes:
            logits = self.model.forward(np.array(ids), np.array(positions), batch,
                                        np.array(logits_at, dtype=int))
        return [logits[start:end] for start, end in zip(borders, borders[1:])]

    def first_wanted(self, sequence: Sequence) -> int:
        """The first of a sequence's tokens after which logits are wanted."""
        last = len(sequence.ids) - 1
        if sequence.request.prompt_logprobs is None:
            return last
        known = len(self._prompt_logprobs.get(sequence.request.id, [None]))
        return known - 1 if known < sequence.prompt_length else last

    def hand_over(self, sequence: Sequence, count: int, rows: np.ndarray,
                  finished: list[str]) -> None:
        """Give an answer the logits that were computed for it, and see what it makes of them.

        rows: as `forward` returns them. finished: gets the names of answers that end.
        """
        request = sequence.request
        caught_up = count >= sequence.num_pending_tokens
        if request.prompt_logprobs is not None:
            try:
                self.note_prompt(sequence, rows)
            except Exception as error:
                self.abort(request.id)
                self._deltas += [Delta(request.id, index, finish_reason="error",
                                       error=failure(error)) for index in range(request.n)]
                finished += [f"{request.id}/{index}" for index in range(request.n)]
                return
        guessed = max(0, count - sequence.num_pending_tokens)
        del sequence.guesses[guessed:]
        self.scheduler.computed(sequence, count - guessed)
        if not caught_up:
            return
        for one in [sequence, *self.fork(sequence)]:
            answer = self._answers[request.id][one.index][1]
            try:
                answer.resume(rows[len(rows) - 1 - guessed:])
            except BaseException:                        # Ctrl-C, while it chose a token
                self.abort(request.id)
                raise
            if answer.accepted:
                self.scheduler.computed(one, answer.accepted)
            delta = answer.delta()
            if delta is not None:
                self._deltas.append(self.with_prompt(delta, one))
            if answer.finish_reason is not None:
                finished.append(one.name)
                self.scheduler.remove(one)
                del self._answers[request.id][one.index]
        if not self._answers[request.id]:
            del self._answers[request.id]
            self._prompt_logprobs.pop(request.id, None)

    def fork(self, sequence: Sequence) -> list[Sequence]:
        """Begin the other answers of a request whose prompt is computed: they share its blocks,
        and the first of them to write into one gets a copy."""
        if sequence.forked:
            return []
        sequence.forked = True
        siblings = []
        for index in range(1, sequence.request.n):
            sibling = replace(sequence, index=index, rank=(*sequence.rank[:2], index),
                              ids=list(sequence.ids), guesses=[], proposer=None,
                              block_table=[], hashes=[])
            self.scheduler.fork(sequence, sibling)
            answer = Answer(sibling, self.language_model)
            self._answers[sequence.request.id][index] = sibling, answer
            siblings.append(sibling)
        return siblings

    def note_prompt(self, sequence: Sequence, rows: np.ndarray) -> None:
        """Keep the log-probabilities of a prompt's tokens, from the rows before them."""
        request = sequence.request
        known = self._prompt_logprobs.setdefault(request.id, [None])
        for row in rows:
            if len(known) < len(request.prompt_ids):
                known.append(logprobs(row, request.prompt_ids[len(known)],
                                      request.prompt_logprobs))

    def with_prompt(self, delta: Delta, sequence: Sequence) -> Delta:
        """An answer's first delta also tells the prompt's log-probabilities."""
        known = self._prompt_logprobs.get(sequence.request.id)
        if known is None or sequence.told_prompt:
            return delta
        sequence.told_prompt = True
        return replace(delta, prompt_logprobs=tuple(known))

    def record(self, plan: Plan) -> StepRecord:
        """What a step is about to do."""
        rows = tuple(Row(sequence.name, sequence.num_computed_tokens, count,
                         max(0, count - sequence.num_pending_tokens),
                         sequence.num_pending_tokens > 1 or not sequence.generated(),
                         tuple(sequence.block_table))
                     for sequence, count in plan.rows)
        used = len(self.pool.references) - self.pool.available
        return StepRecord(
            self._steps, 0.0, 0.0, rows, waiting=len(self.scheduler.waiting),
            admitted=tuple((one.name, one.num_computed_tokens) for one in plan.admitted),
            preempted=tuple(one.name for one in plan.preempted), blocks_used=used,
            blocks_kept=len(self.pool.kept), blocks_empty=len(self.pool.empty))


def model_len(config: ModelConfig, asked: int | None) -> int:
    """How long a sequence may get: what the model was made for, or less where that is asked.

    Where RoPE is stretched as a sequence grows, its keys depend on the length at which they
    were computed: the same text in other steps has other logits. So such a model is served
    within its original context, where nothing is stretched.
    Raises ModelError when more is asked.
    """
    longest, scaling = config.max_position_embeddings, config.rope_scaling
    if scaling is not None and scaling.kind == "dynamic":
        longest = scaling.original_max_position_embeddings
    if asked is not None and asked > longest:
        raise ModelError("cannot start the engine", f"max_model_len is {asked}",
                         f"this model has a context of {longest} tokens")
    return longest if asked is None else asked
