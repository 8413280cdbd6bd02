"""The request loop with a class of its own for what it remembers,
and the text put together from parts."""

import time

import numpy as np

from gearworks.decoding import Context, Generation, StopMatcher
from gearworks.errors import ModelError
from gearworks.pipeline import run_request
from gearworks.sampling import SamplingParams, choose, logprobs
from gearworks.tokenizer import IncrementalDetokenizer


class Request:
    def __init__(self, tokenizer, stop, on_text):
        self.detokenizer = IncrementalDetokenizer(tokenizer, skip_special=True)
        self.matcher = StopMatcher(stop)
        self.on_text = on_text or (lambda text: None)
        self.text = ""

    def show(self, text):
        self.text += text
        if text:
            self.on_text(text)

    def on_token(self, token):
        self.show(self.matcher.push(self.detokenizer.push(token)))
        return self.matcher.found is not None

    def finish(self, ids):
        if self.matcher.found is None:
            self.show(self.matcher.push(self.detokenizer.flush()))
        if self.matcher.found is None:
            self.show(self.matcher.flush())
        return self.text


def generate(model, tokenizer, prompt, *, params=SamplingParams(), max_tokens=256, eos_ids=(),
             stop=(), stop_ids=(), add_special_tokens=True, top_logprobs=None, grammar=None,
             on_text=None, context=None):
    times = [time.perf_counter()]
    ids = tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
    if max_tokens < 0:
        raise ModelError("no", "a negative limit", "0 is the least")
    if len(ids) == 0:
        raise ModelError("no", "an empty prompt", "say something")
    context = Context(model) if context is None else context
    if len(ids) >= context.cache.capacity and max_tokens or len(ids) > context.cache.capacity:
        raise ModelError("no", "a prompt without room", "say less")
    request, rng = Request(tokenizer, stop, on_text), np.random.default_rng(params.seed)
    answer, numbers, known = [], [], []

    def forward(new):
        if not known:
            known.append(context.rewind(new))
            logits = context.forward(new[known[0]:])
            times.append(time.perf_counter())
            return logits
        return context.forward(new)

    def choose_next(logits):
        allowed = None if grammar is None else grammar.allowed()
        token = choose(logits, params, [*ids, *answer], rng, answer, allowed)
        if grammar is not None:
            grammar.advance(token)
        answer.append(token)
        numbers.append(None if top_logprobs is None else logprobs(logits, token, top_logprobs))
        return token

    done = run_request(prompt, encode=lambda text: ids, forward=forward, choose=choose_next,
                       decode=request.finish, eos_ids=frozenset(eos_ids) | frozenset(stop_ids),
                       max_tokens=min(max_tokens, context.cache.capacity - len(ids)),
                       on_token=request.on_token)
    times.append(time.perf_counter())
    return Generation(done.prompt_ids, done.ids, done.text, done.finish_reason,
                      known[0] if known else 0, times[1] - times[0],
                      times[-1] - times[1] if len(times) > 2 else 0.0,
                      tuple(number for number in numbers[:len(done.ids)] if number is not None))
