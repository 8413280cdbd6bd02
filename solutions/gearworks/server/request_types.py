"""What a client may ask, field by field; `protocol.validate_request` checks a body by it.

A field that is null counts as absent. Booleans are no numbers, strings neither; NaN and
infinity are refused; 1.0 is a whole number, as in JSON Schema. Bounds are OpenAI's, and vLLM's
for what OpenAI does not have (top_k, min_p, repetition_penalty, stop_token_ids, ignore_eos,
priority, min_tokens); other samplers are named as in llama.cpp's server. Lists that a client
makes as long as it likes fail with their first error: to note a million of them takes seconds,
in which nobody else is answered.

Left out on purpose: pictures and sound, OpenAI's older `functions`, custom (free-form) tools,
`best_of` and `suffix` of completions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo,
                      WrapValidator, field_validator, model_validator)

from gearworks.samplers import BREAKERS

INT64 = 2 ** 63
MOST_TOOLS = 128
MOST_MESSAGES = 10_000
MOST_ANSWERS = 1024             # to one request, with all its prompts


@dataclass(frozen=True)
class Limits:
    """What this server can do. models: the names that it answers to, the first its own."""

    models: tuple[str, ...]
    vocab_size: int
    max_model_len: int
    max_num_seqs: int


Bounded = tuple[str, int, int, int]


class Object(BaseModel):
    """A JSON object that a client sends: what is null counts as absent."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: item for name, item in value.items() if item is not None}
        return value

    def bounded(self, limits: Limits) -> Iterator[Bounded]:
        """What this server's limits bound: a parameter, a value in it, the least, the most."""
        return iter(())


def ignored_within(asked: Object, body: Mapping[str, Any], path: str = "") -> list[str]:
    """The parameters inside of a request's objects that mean nothing here, such as
    `text.verbosity`, by their paths. What is in lists is content, and no parameter."""
    found: list[str] = []
    for name, field in type(asked).model_fields.items():
        key, value = field.alias or name, getattr(asked, name)
        sent = body.get(key)
        if isinstance(value, Object) and isinstance(sent, Mapping):
            within = f"{path}{key}."
            known = {each.alias or name for name, each in type(value).model_fields.items()}
            found += sorted(within + each for each, item in sent.items()
                            if each not in known and item is not None)
            found += ignored_within(value, sent, within)
    return found


def as_sent(value: Any, check: Any) -> Any:
    check(value)
    return value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _all_whole(values: Any) -> Any:
    is_mixed = isinstance(values, list) and float in set(map(type, values))
    return list(map(_whole, values)) if is_mixed else values


WHOLE = BeforeValidator(_whole)             # for an int: some clients write every number so
ALL_WHOLE = BeforeValidator(_all_whole)     # for a list of them, which may be long


T = TypeVar("T")
LongList = Annotated[list[T], Field(fail_fast=True)]


class TextPart(Object):
    """A part of a message's content; pictures and sound are not supported."""

    type: Literal["text"]
    text: str


class CalledFunction(Object):
    """Which function an assistant called, and with what: a JSON object, written as a string."""

    name: str
    arguments: str = ""


class ToolCall(Object):
    """A call in an assistant's message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Object):
    """One message of a conversation. What else it holds goes to the chat template."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: LongList[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    content: str | LongList[TextPart] | None = Field(None, validate_default=True)

    @field_validator("content")
    @classmethod
    def _is_there(cls, content: Any, info: ValidationInfo) -> Any:
        if content is None and not (info.data.get("role") == "assistant"
                                    and info.data.get("tool_calls")):
            raise ValueError("a message without tool_calls needs a content")
        return content

    def text(self) -> str | None:
        """The content, with its parts on lines of their own."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content


Messages = Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES,
                                          fail_fast=True)]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(Object):
    """A function that the model may call; parameters: the JSON schema of its arguments."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Object):
    """A tool that the model may use."""

    type: Literal["function"]
    function: Function


class FunctionReference(Object):
    """A function by its name."""

    name: str


class NamedTool(Object):
    """The tool that the model has to use."""

    type: Literal["function"]
    function: FunctionReference


class AllowedTools(Object):
    """The tools that it may use, of all that are described to it. mode: whether it has to."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MOST_TOOLS)]


class AllowedChoice(Object):
    """Some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class TextFormat(Object):
    """Any text."""

    type: Literal["text"]


class JSONObjectFormat(Object):
    """A JSON object."""

    type: Literal["json_object"]


class NamedSchema(Object):
    """A JSON schema with a name."""

    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JSONSchemaFormat(Object):
    """JSON that a schema accepts."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JSONObjectFormat | JSONSchemaFormat,
                           Field(discriminator="type")]


class StreamOptions(Object):
    """What comes with a stream."""

    include_usage: bool | None = False


TokenId = Annotated[int, Field(ge=0, lt=2 ** 31)]           # in lists that are ALL_WHOLE
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True), ALL_WHOLE]
StopText = Annotated[str, Field(min_length=1, max_length=1000)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SamplingRequest(Object):
    """What chats and completions have in common."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128), WHOLE] | None = 1
    seed: Annotated[int, Field(ge=-INT64, lt=INT64), WHOLE] | None = None
    stop: Annotated[list[StopText], Field(max_length=64, fail_fast=True), BeforeValidator(
        _listed, json_schema_input_type=StopText | list[StopText])] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=1000, fail_fast=True),
                              ALL_WHOLE] | None = None
    ignore_eos: bool | None = False
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] | None = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2 ** 31), WHOLE] | None = 0
    min_p: Annotated[float, Field(ge=0, le=1)] | None = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = 1.0
    presence_penalty: Penalty | None = 0.0
    frequency_penalty: Penalty | None = 0.0
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")],
                     Annotated[float, Field(ge=-100, le=100)]] | None = None
    priority: Annotated[int, Field(ge=-2 ** 31, lt=2 ** 31), WHOLE] | None = 0
    min_tokens: Annotated[int, Field(ge=0, lt=2 ** 31), WHOLE] | None = 0
    dry_multiplier: Annotated[float, Field(ge=0, le=100)] | None = 0.0
    dry_base: Annotated[float, Field(ge=1, le=4)] | None = 1.75
    dry_allowed_length: Annotated[int, Field(ge=1, lt=2 ** 31), WHOLE] | None = 2
    dry_penalty_last_n: Annotated[int, Field(ge=-1, lt=2 ** 31), WHOLE] | None = -1
    dry_sequence_breakers: Annotated[list[StopText], Field(
        max_length=64, fail_fast=True)] | None = list(BREAKERS)
    xtc_probability: Annotated[float, Field(ge=0, le=1)] | None = 0.0
    xtc_threshold: Annotated[float, Field(ge=0, le=1)] | None = 0.1
    top_n_sigma: Annotated[float, Field(ge=0, le=1000)] | None = 0.0
    dynatemp_range: Annotated[float, Field(ge=0, le=2)] | None = 0.0
    dynatemp_exponent: Annotated[float, Field(ge=0, le=100)] | None = 1.0

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def bounded(self, limits: Limits) -> Iterator[Bounded]:
        """See `Object.bounded`."""
        yield "n", self.n, 1, limits.max_num_seqs
        yield "min_tokens", self.min_tokens, 0, limits.max_model_len
        yield from _ends("logit_bias", [*map(int, self.logit_bias or ())], limits)
        yield from _ends("stop_token_ids", self.stop_token_ids or (), limits)


def _ends(name: str, ids: Sequence[int], limits: Limits) -> Iterator[Bounded]:
    """The least and the greatest of many ids: if these are in the vocabulary, all are."""
    for id in (min(ids), max(ids)) if ids else ():
        yield name, id, 0, limits.vocab_size - 1


TokenCount = Annotated[int, Field(ge=1, lt=2 ** 31), WHOLE]


class ChatRequest(SamplingRequest):
    """POST /v1/chat/completions."""

    messages: Messages
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    response_format: ResponseFormat | None = None
    # as they were sent: a template sees every key, in its order
    tools: Annotated[list[Annotated[Tool, WrapValidator(as_sent)]],
                     Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: (Literal["none", "auto", "required"] | Annotated[
        NamedTool | AllowedChoice, Field(discriminator="type")] | None) = None
    # None: as many calls as the model likes, but one where it is forced to call. A small model
    # that is allowed to repeat itself does not stop.
    parallel_tool_calls: bool | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _with_logprobs(cls, top: int | None, info: ValidationInfo) -> int | None:
        if top and not info.data.get("logprobs"):
            raise ValueError('it needs "logprobs": true')
        return top

    @field_validator("tools")
    @classmethod
    def _have_different_names(cls, tools: Any) -> Any:
        names = [tool["function"]["name"] for tool in tools or ()]
        if len(set(names)) < len(names):
            raise ValueError("two tools have the same name")
        return tools

    @field_validator("tool_choice")
    @classmethod
    def _is_a_tool(cls, choice: Any, info: ValidationInfo) -> Any:
        names = {tool["function"]["name"] for tool in info.data.get("tools") or ()}
        if choice == "required" and not names:
            raise ValueError("there are no tools")
        if not _chosen(choice) <= names:
            raise ValueError("no tool has this name")
        return choice

    def bounded(self, limits: Limits) -> Iterator[Bounded]:
        """See `Object.bounded`."""
        yield from super().bounded(limits)
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(self, name) is not None:
                yield name, getattr(self, name), 1, limits.max_model_len

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that are described to the model, as they were sent."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def usable_tools(self) -> list[dict[str, Any]]:
        """Those of them that it may use."""
        chosen = _chosen(self.tool_choice)
        return [tool for tool in self.offered_tools
                if not chosen or tool["function"]["name"] in chosen]

    @property
    def forced_tools(self) -> list[dict[str, Any]]:
        """Those of which it has to use one."""
        choice = self.tool_choice
        forced = (choice.allowed_tools.mode == "required" if isinstance(choice, AllowedChoice)
                  else isinstance(choice, NamedTool) or choice == "required")
        return self.usable_tools if forced else []


def _chosen(choice: Any) -> set[str]:
    """The tools that a choice names; none, where it is about all of them."""
    if isinstance(choice, NamedTool):
        return {choice.function.name}
    if isinstance(choice, AllowedChoice):
        return {tool.function.name for tool in choice.allowed_tools.tools}
    return set()


def _is_one(prompt: str | list) -> bool:
    """Whether it is one prompt, a text or ids, and no list of them."""
    return isinstance(prompt, str) or isinstance(prompt[0], int)


class CompletionRequest(SamplingRequest):
    """POST /v1/completions. prompt: a text, ids, or several of either."""

    prompt: (str | TokenIds
             | Annotated[list[str], Field(min_length=1, max_length=MOST_ANSWERS,
                                          fail_fast=True)]
             | Annotated[list[TokenIds], Field(min_length=1, max_length=MOST_ANSWERS,
                                               fail_fast=True)])
    max_tokens: Annotated[int, Field(ge=0, lt=2 ** 31), WHOLE] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    echo: bool | None = False

    @field_validator("prompt")
    @classmethod
    def _has_few_answers(cls, prompt: Any, info: ValidationInfo) -> Any:
        answers = (1 if _is_one(prompt) else len(prompt)) * (info.data.get("n") or 1)
        if answers > MOST_ANSWERS:
            raise ValueError(f"with n, that is {answers} answers, and one request can have "
                             f"{MOST_ANSWERS}")
        return prompt

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, as a list even if there is one."""
        return [self.prompt] if _is_one(self.prompt) else self.prompt

    def bounded(self, limits: Limits) -> Iterator[Bounded]:
        """See `Object.bounded`."""
        yield from super().bounded(limits)
        yield "max_tokens", self.max_tokens, 0, limits.max_model_len
        for prompt in self.prompts:
            if not isinstance(prompt, str):
                yield from _ends("prompt", prompt, limits)


class TokenizeRequest(Object):
    """POST /tokenize: a text, or a conversation as the model reads it."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = True


class DetokenizeRequest(Object):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True), ALL_WHOLE]

    def bounded(self, limits: Limits) -> Iterator[Bounded]:
        """See `Object.bounded`."""
        yield from _ends("tokens", self.tokens, limits)
