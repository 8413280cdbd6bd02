"""What the answers to one request have come to, while the engine's deltas come in."""

import time
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any
from uuid import uuid4

from gearworks.errors import GearworksError
from gearworks.server.api_error import APIError
from gearworks.server.chat_text import ChatText, chat_text
from gearworks.server.logprobs import chat_logprobs, completion_logprobs
from gearworks.server.request_types import ChatRequest, CompletionRequest
from gearworks.serving.request import Delta, Request
from gearworks.tokenizer import IncrementalDetokenizer, Tokenizer


class Answer:
    """One of the answers.

    number: its place in `choices`. deltas, tokens: how many it has had. finish_reason: once it
    has ended. prompt: what is echoed before it. text: what cuts it into content and tool calls.
    """

    def __init__(self, number: int, request: Request, prompt: str, tokenizer: Tokenizer,
                 text: ChatText):
        self.number, self.prompt, self.text = number, prompt, text
        self.finish_reason: str | None = None
        self.deltas = self.tokens = 0
        self._prompt_ids = request.prompt_ids
        self._tokenizer = tokenizer
        # Where in the text the next token begins
        self._place = len(prompt)
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special=True)

    def chat_logprobs(self, delta: Delta) -> dict[str, Any] | None:
        """OpenAI's `logprobs` for a chat's chunk, if this delta has any."""
        return chat_logprobs(delta.logprobs, self._tokenizer) if delta.logprobs else None

    def completion_logprobs(self, delta: Delta) -> dict[str, list] | None:
        """OpenAI's `logprobs` for a completion's chunk, if this delta has any, with those of
        an echoed prompt before them."""
        parts = []
        if delta.prompt_logprobs is not None:
            parts.append(completion_logprobs(delta.prompt_logprobs, self._prompt_ids,
                                             self._prompt_offsets(), self._tokenizer))
        if delta.logprobs:
            offsets = []
            for entry in delta.logprobs:
                offsets.append(self._place)
                self._place += len(self._detokenizer.push(entry.id))
            parts.append(completion_logprobs(delta.logprobs,
                                             [entry.id for entry in delta.logprobs], offsets,
                                             self._tokenizer))
        return joined(parts)

    def _prompt_offsets(self) -> list[int]:
        """Where in the prompt's text its tokens begin. A BOS that the text lacks has none."""
        detokenizer = IncrementalDetokenizer(self._tokenizer)
        ends = list(accumulate(len(detokenizer.push(id)) for id in self._prompt_ids))
        added = ends[-1] + len(detokenizer.flush()) - len(self.prompt)
        return [max(0, end - added) for end in [0, *ends[:-1]]]


class Reply:
    """All answers to one request of the API, which may be several requests of the engine.

    head: what every object about it begins with: id, created, model. requests: one for each
    prompt. prompts: their texts, if they are to be echoed.
    """

    def __init__(self, request: ChatRequest | CompletionRequest, requests: Sequence[Request],
                 tokenizer: Tokenizer, model: str):
        chat = isinstance(request, ChatRequest)
        self.request, self.requests, self.tokenizer = request, requests, tokenizer
        self.head = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid4().hex}",
                     "created": int(time.time()), "model": request.model or model}
        self._prompts = {each.id: place for place, each in enumerate(requests)}
        echoed = [""] * len(requests)
        if not chat and request.echo:
            echoed = [prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
                      for prompt in request.prompts]
        self.answers = [Answer(place * request.n + index, each, echoed[place], tokenizer,
                               chat_text(request))
                        for place, each in enumerate(requests) for index in range(request.n)]
        self._cached = [0] * len(requests)

    def take(self, delta: Delta) -> Answer:
        """Count what a delta brings; returns the answer that it belongs to.
        Raises APIError for one that ends in an error, or is aborted."""
        if delta.finish_reason == "error":
            raise failure(delta.error)
        if delta.finish_reason == "abort":
            raise APIError(503, "The request was cancelled before it was answered.",
                           code="cancelled")
        place = self._prompts[delta.request_id]
        answer = self.answers[place * self.request.n + delta.index]
        answer.deltas += 1
        answer.tokens += len(delta.ids)
        answer.finish_reason = delta.finish_reason
        if delta.index == 0:
            self._cached[place] = max(self._cached[place], delta.cached_tokens)
        return answer

    @property
    def done(self) -> bool:
        """Whether all answers have ended."""
        return all(answer.finish_reason for answer in self.answers)

    def usage(self) -> dict[str, Any]:
        """Token counts in OpenAI's names. A prompt counts once, however many answers it has."""
        prompt = sum(len(each.prompt_ids) for each in self.requests)
        completion = sum(answer.tokens for answer in self.answers)
        return {"prompt_tokens": prompt, "completion_tokens": completion,
                "total_tokens": prompt + completion,
                "prompt_tokens_details": {"cached_tokens": sum(self._cached)}}


def failure(error: GearworksError | None) -> APIError:
    """An error inside the engine, in the API's form."""
    if error is None:
        return APIError(500, "The engine failed on this request.")
    return APIError.of(error, status=500)


def joined(parts: Iterable[dict[str, list] | None]) -> dict[str, list] | None:
    """Several `logprobs` objects as one, or None if there are none."""
    whole: dict[str, list] | None = None
    for part in filter(None, parts):
        whole = part if whole is None else {
            name: None if whole[name] is None else whole[name] + part[name] for name in whole}
    return whole
