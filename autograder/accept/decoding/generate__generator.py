"""A generator of tokens, and a loop that consumes it."""

import time
from itertools import islice

import numpy as np

from gearworks.decoding import Context, Generation, TextStream
from gearworks.errors import ModelError
from gearworks.sampling import SamplingParams, choose, logprobs


def generate(model, tokenizer, prompt, *, params=SamplingParams(), max_tokens=256, eos_ids=(),
             stop=(), stop_ids=(), add_special_tokens=True, top_logprobs=None, grammar=None,
             on_text=None, context=None):
    begun = time.perf_counter()
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
    limit = model.config.max_position_embeddings if context is None else context.cache.capacity
    if not prompt_ids or max_tokens < 0 or len(prompt_ids) + (max_tokens > 0) > limit:
        raise ModelError("cannot generate", "the prompt or the limit is impossible",
                         "change one of them")
    max_tokens = min(max_tokens, limit - len(prompt_ids))
    if context is None:
        context = Context(model, len(prompt_ids) + max_tokens)
    marks = {"first": begun, "known": 0}

    def tokens():
        rng, generated = np.random.default_rng(params.seed), []
        marks["known"] = context.rewind(prompt_ids)
        unseen = prompt_ids[marks["known"]:]
        while True:
            logits = context.forward(unseen)
            if not generated:
                marks["first"] = time.perf_counter()
            allowed = grammar.allowed() if grammar else None
            token = choose(logits, params, prompt_ids + generated, rng, list(generated),
                           allowed)
            if grammar:
                grammar.advance(token)
            generated.append(token)
            unseen = [token]
            yield token, None if top_logprobs is None else logprobs(logits, token, top_logprobs)

    stream, ids, numbers, reason = TextStream(tokenizer, stop, on_text), [], [], "length"
    for token, number in islice(tokens(), max_tokens):
        if token in eos_ids or token in stop_ids:
            reason = "stop"
            break
        ids.append(token)
        numbers += [number] if number else []
        if stream.push(token):
            reason = "stop"
            break
    text = stream.finish()
    return Generation(prompt_ids=prompt_ids, ids=ids, text=text, finish_reason=reason,
                      cached_tokens=marks["known"], prefill_seconds=marks["first"] - begun,
                      decode_seconds=time.perf_counter() - marks["first"],
                      logprobs=tuple(numbers))
