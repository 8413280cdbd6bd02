"""A plain loop, without the request loop of chapter 1."""

import time

import numpy as np

from gearworks.decoding import Context, Generation, TextStream
from gearworks.errors import ModelError
from gearworks.sampling import SamplingParams, choose, logprobs


def generate(model, tokenizer, prompt, *, params=SamplingParams(), max_tokens=256, eos_ids=(),
             stop=(), stop_ids=(), add_special_tokens=True, top_logprobs=None, grammar=None,
             on_text=None, context=None):
    start = time.perf_counter()
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
    capacity = (context.cache.capacity if context is not None
                else model.config.max_position_embeddings)
    room = capacity - len(prompt_ids)
    if max_tokens < 0 or not prompt_ids or room < 0 or (room == 0 and max_tokens > 0):
        raise ModelError("this request makes no sense", "its prompt or its limit",
                         "look at both")
    rng = np.random.default_rng(params.seed)
    stream, ends = TextStream(tokenizer, stop, on_text), set(eos_ids) | set(stop_ids)
    ids, numbers, reason = [], [], "length"
    known, first = 0, None
    if max_tokens > 0:
        if context is None:
            context = Context(model)
        known = context.rewind(prompt_ids)
        logits = context.forward(prompt_ids[known:])
        first = time.perf_counter()
        while True:
            mask = grammar.allowed() if grammar is not None else None
            token = choose(logits, params, prompt_ids + ids, rng, ids, mask)
            if grammar is not None:
                grammar.advance(token)
            if token in ends:
                reason = "stop"
                break
            ids.append(token)
            if top_logprobs is not None:
                numbers.append(logprobs(logits, token, top_logprobs))
            if stream.push(token):
                reason = "stop"
                break
            if len(ids) == min(max_tokens, room):
                break
            logits = context.forward([token])
    first = first or time.perf_counter()
    return Generation(prompt_ids, ids, stream.finish(), reason, known, first - start,
                      time.perf_counter() - first, tuple(numbers))
