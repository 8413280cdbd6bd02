"""From a request of the API to requests of the engine: texts rendered and encoded, parameters
in the engine's names, grammars made and tried.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from gearworks.decoding import Grammar
from gearworks.errors import GearworksError, ModelError
from gearworks.language_model import LanguageModel
from gearworks.samplers import SETTINGS, OtherSamplers
from gearworks.sampling import SamplingParams
from gearworks.server.api_error import APIError
from gearworks.server.request_types import (ChatRequest, CompletionRequest, JSONObjectFormat,
                                            JSONSchemaFormat, Limits, Message,
                                            NamedTool, SamplingRequest)
from gearworks.server.tools import arguments_schema, forced_grammar, in_words
from gearworks.serving.request import Request
from gearworks.structured import GrammarVocabulary, TokenGrammar, json_grammar


class InputProcessor:
    """Makes the engine's requests, for one model and its limits.

    Rendering, encoding and making a grammar take milliseconds, for hostile input more: not in
    the thread that serves everybody. Any number of threads may use one.
    """

    def __init__(self, language_model: LanguageModel, limits: Limits):
        self.language_model, self.limits = language_model, limits

    def requests(self, request: ChatRequest | CompletionRequest) -> list[Request]:
        """The engine's requests, one for each prompt.

        Raises APIError (400) for a conversation that the chat template refuses, a prompt that
        is empty or leaves no room in the context ("context_length_exceeded"), and for what
        cannot be a schema.
        """
        if isinstance(request, ChatRequest):
            return [self._chat(request)]
        return [self._completion(request, prompt) for prompt in request.prompts]

    def chat_ids(self, messages: Sequence[Message],
                 tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """A conversation as ids, ready for the assistant's answer. Raises APIError."""
        try:
            text = self.chat_text(messages, tools)
        except GearworksError as error:
            raise APIError.of(error, param="messages") from None
        return self.text_ids(text, "messages", add_special_tokens=False)

    def text_ids(self, text: str, param: str, add_special_tokens: bool) -> list[int]:
        """A text as ids. Raises APIError; for a text that no context has room for it does so
        before it is encoded, which would take long."""
        if len(text) > self.limits.max_model_len * self._longest_token:
            raise APIError(400, f"This model's context has room for {self.limits.max_model_len}"
                                f" tokens, and the {param} alone have {len(text)} characters, "
                                "which are more. Please shorten them.",
                           param, "context_length_exceeded")
        try:
            return self.language_model.tokenizer.encode(
                text, add_special_tokens=add_special_tokens)
        except GearworksError as error:
            raise APIError.of(error, param=param) from None

    @cached_property
    def _longest_token(self) -> int:
        """In characters; no token has more than it has bytes."""
        tokenizer = self.language_model.tokenizer
        return max(len(tokenizer.token_bytes(id)) for id in tokenizer.vocabulary.ids)

    def chat_text(self, messages: Sequence[Message],
                  tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """A conversation as the model reads it. Raises GearworksError."""
        plain = [_for_template(message) for message in messages]
        if self.template_heeds_tools:
            return self.language_model.chat_prompt(plain, tools=list(tools) or None)
        return self.language_model.chat_prompt(in_words(plain, tools))

    @cached_property
    def template_heeds_tools(self) -> bool:
        """Whether the chat template shows tools to the model: a canary's name has to appear."""
        name = "canary_in_the_template"
        canary = {"type": "function", "function": {
            "name": name, "description": name, "parameters": {
                "type": "object", "properties": {}, "required": []}}}
        try:
            return name in self.language_model.chat_prompt(
                [{"role": "user", "content": "?"}], tools=[canary])
        except GearworksError:
            return False

    @cached_property
    def _vocabulary(self) -> GrammarVocabulary:
        return GrammarVocabulary(self.language_model.tokenizer,
                                 self.language_model.model.config.vocab_size,
                                 self.language_model.eos_ids)

    def _chat(self, request: ChatRequest) -> Request:
        for place, tool in enumerate(request.tools or ()):
            try:
                schema = arguments_schema(tool["function"].get("parameters"))
                if tool in request.forced_tools:
                    json_grammar(schema)
            except ModelError as error:
                raise APIError.of(error, param=f"tools[{place}].function.parameters",
                                  code="invalid_function_parameters") from None
        ids = self.chat_ids(request.messages, request.offered_tools)
        most = (request.max_completion_tokens if request.max_tokens is None
                else request.max_tokens)
        return self._request(request, ids, "messages", most,
                             top_logprobs=(request.top_logprobs or 0) if request.logprobs
                             else None, grammar=self._grammar(request))

    def _completion(self, request: CompletionRequest, prompt: str | Sequence[int]) -> Request:
        ids = (self.text_ids(prompt, "prompt", add_special_tokens=True)
               if isinstance(prompt, str) else list(prompt))
        if not ids:
            raise APIError(400, "The prompt is empty: give the model something to continue.",
                           "prompt", "invalid_value")
        scored = request.echo and request.logprobs is not None
        # lm-eval asks for one token, and takes off the last log-probability: it must be there
        ignore_eos = request.ignore_eos or scored and request.max_tokens <= 1
        return self._request(request, ids, "prompt", request.max_tokens,
                             top_logprobs=request.logprobs, ignore_eos=ignore_eos,
                             prompt_logprobs=request.logprobs if scored else None)

    def _request(self, request: SamplingRequest, ids: list[int], param: str,
                 max_tokens: int | None, **settings: Any) -> Request:
        room = self.limits.max_model_len - len(ids)
        if room < (max_tokens != 0):
            raise APIError(400, f"This model's context has room for {self.limits.max_model_len}"
                                f" tokens, the answer included, and the {param} alone have "
                                f"{len(ids)}. Please shorten them.",
                           param, "context_length_exceeded")
        return Request(ids, self._sampling_params(request),
                       max_tokens=room if max_tokens is None else min(room, max_tokens),
                       n=request.n, stop=tuple(request.stop or ()),
                       stop_ids=tuple(request.stop_token_ids or ()),
                       priority=request.priority,
                       **{"ignore_eos": request.ignore_eos} | settings)

    def _sampling_params(self, request: SamplingRequest) -> SamplingParams:
        """What the engine's bounds refuse is moved to the next value that means the same."""
        others = OtherSamplers(**{name: getattr(request, name) for name in SETTINGS})
        others = others.for_model(self.language_model.tokenizer, request.dry_sequence_breakers,
                                  {*self.language_model.eos_ids,
                                   *(request.stop_token_ids or ())})
        return SamplingParams(
            temperature=request.temperature if request.temperature >= 1e-6 else 0.0,
            top_k=max(request.top_k, 0), top_p=max(request.top_p, 1e-9), min_p=request.min_p,
            repetition_penalty=max(request.repetition_penalty, 1e-6),
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            seed=None if request.seed is None else request.seed % 2 ** 64,
            logit_bias={int(id): bias for id, bias in (request.logit_bias or {}).items()},
            others=others)

    def _grammar(self, request: ChatRequest) -> Callable[[], Grammar] | None:
        """Makes a fresh grammar for each answer, if the request asks for a form."""
        param = "response_format"
        try:
            if request.forced_tools:
                param = "tools"
                several = (request.parallel_tool_calls
                           and not isinstance(request.tool_choice, NamedTool))
                grammar = forced_grammar(request.forced_tools, bool(several))
            elif isinstance(request.response_format, JSONObjectFormat):
                grammar = json_grammar({"type": "object"})
            elif isinstance(request.response_format, JSONSchemaFormat):
                grammar = json_grammar(request.response_format.json_schema.schema_)
            else:
                return None
            # What cannot be begun is refused at once, not when its turn comes; and to compile a
            # large one takes seconds, here only
            first = TokenGrammar(self._vocabulary, grammar)
            first.copy().allowed()
            return first.copy
        except ModelError as error:
            raise APIError.of(error, param=param, code="invalid_json_schema") from None


def _for_template(message: Message) -> dict[str, Any]:
    """A message in the form that chat templates know.

    They know "system" and no "developer", contents that are texts, and arguments of calls as
    objects (text that is no JSON stays text).
    """
    plain = message.model_dump(exclude_none=True)
    if message.role == "developer":
        plain["role"] = "system"
    if message.content is not None:
        plain["content"] = message.text()
    for call in plain.get("tool_calls", ()):
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"] or "{}")
        except (ValueError, RecursionError):
            pass
    return plain


