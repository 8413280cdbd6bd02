"""Tools that people point at OpenAI's API, against the real server with the real SmolLM2.

litellm, LangChain with LangGraph, and lm-eval; they are in the extra `clients`.
"""

import json
from itertools import takewhile

import pytest

pytestmark = pytest.mark.usefixtures("loopback_only")

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a city",
    "parameters": {"type": "object", "required": ["city"], "additionalProperties": False,
                   "properties": {"city": {"type": "string", "maxLength": 12}}}}}


@pytest.fixture(scope="module")
def server(smollm2_server):
    return smollm2_server


# --- litellm ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def litellm(client_library):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")        # else it fetches prices
        yield client_library("litellm")


@pytest.fixture(scope="module")
def complete(litellm, server):
    """litellm.completion, greedy and short unless told otherwise."""
    def complete(messages=CAPITAL, **options):
        return litellm.completion(**{
            "model": "openai/smollm2", "api_base": f"{server.url}/v1", "api_key": "none",
            "messages": messages, "temperature": 0, "max_tokens": 24, "num_retries": 0,
            "max_retries": 0} | options)
    return complete


def test_litellm(complete, smollm2):
    alone = smollm2.chat(CAPITAL, max_tokens=24).text
    whole = complete()
    assert whole.choices[0].message.content == alone
    assert whole.choices[0].finish_reason == "stop" and whole.usage.completion_tokens > 0
    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks
                   if chunk.choices) == alone
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_tools_through_litellm(litellm, complete):
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    options = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 48}
    call, = complete(asked, **options).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather", {"city": "Paris"})
    built = litellm.stream_chunk_builder(list(complete(asked, stream=True, **options)))
    assert built.choices[0].finish_reason == "tool_calls"
    again, = built.choices[0].message.tool_calls
    assert again.function == call.function and again.id


def test_what_is_wrong_through_litellm(litellm, complete):
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        complete(temperature=3)
    with pytest.raises(litellm.NotFoundError):
        complete(model="openai/other")


# --- LangChain --------------------------------------------------------------------------------

DOCUMENTS = {
    "lighthouse": "The lighthouse of Varnholm is red and 41 metres high. It was built in 1824 "
                  "by the engineer Ada Lindqvist, after a storm had sunk three ships. Its "
                  "keeper today is Tom Berg, who lives there with two goats.",
    "bakery": "The bakery of Varnholm opens at five in the morning. It sells bread with "
              "caraway, and on Sundays a cake with rhubarb that people come from far away for.",
    "harbour": "The harbour of Varnholm lies below the lighthouse and has room for thirty "
               "boats. In winter it freezes, and then children skate between the piers."}


@pytest.fixture(scope="module")
def chat_openai(client_library, server):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANGSMITH_TRACING", "false")
        yield client_library("langchain_openai").ChatOpenAI(
            base_url=f"{server.url}/v1", api_key="none", model="smollm2", temperature=0,
            max_tokens=48, max_retries=0)


def shared_tokens(server) -> int:
    """How many tokens the last two prompts have in common, in whole blocks."""
    before, last = (request.prompt_ids for request in server.requests[-2:])
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, last)))
    return same // server.engine.pool.block_size * server.engine.pool.block_size


def test_retrieval_shares_the_prefix_of_documents_that_stay(chat_openai, client_library,
                                                            server):
    """What comes first in the prompt is computed once: the documents, not the question."""
    prompts = client_library("langchain_core.prompts")
    runnables = client_library("langchain_core.runnables")
    documents = dict(DOCUMENTS)

    def retrieve(question: str) -> str:
        """The two documents with most of the question's words, in an order that is their own:
        in that of relevance, another question would seldom meet the same prefix."""
        words = set(question.lower().rstrip("?").split())
        best = sorted(documents, key=lambda name: -len(
            words & set(documents[name].lower().split())))[:2]
        return "\n\n".join(documents[name] for name in sorted(best, reverse=True))

    chain = ({"documents": runnables.RunnableLambda(retrieve),
              "question": runnables.RunnablePassthrough()}
             | prompts.ChatPromptTemplate([
                 ("system", "{documents}\n\nAnswer from this text, in one sentence."),
                 ("user", "{question}")]) | chat_openai)

    def ask(question: str) -> tuple[str, int]:
        answer = chain.invoke(question)
        usage = answer.response_metadata["token_usage"]
        assert usage["prompt_tokens"] == len(server.requests[-1].prompt_ids)
        return answer.content, usage["prompt_tokens_details"]["cached_tokens"]

    text, cached = ask("Who is the keeper of the lighthouse of Varnholm today?")
    assert "Tom Berg" in text and cached == 0
    text, cached = ask("Who built the lighthouse of Varnholm, the red one?")
    assert "Lindqvist" in text
    assert cached == shared_tokens(server) >= 64
    documents["lighthouse"] = documents["lighthouse"].replace("red", "blue")
    text, cached = ask("Who built the lighthouse of Varnholm, the red one?")
    assert "Lindqvist" in text and cached == shared_tokens(server) == 0


def test_a_langchain_stream_counts_its_tokens(chat_openai, smollm2):
    *_, whole = accumulated(chat_openai.stream(CAPITAL[0]["content"], stream_usage=True))
    assert whole.content == smollm2.chat(CAPITAL, max_tokens=48).text
    assert whole.usage_metadata["output_tokens"] > 4


def accumulated(chunks):
    """The sums of chunks, as LangChain adds them."""
    whole = None
    for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
        yield whole


@pytest.mark.filterwarnings("ignore:.*create_react_agent")
def test_an_agent_calls_its_tool_and_answers_in_two_turns(chat_openai, client_library):
    """A model of this size would not call a tool by itself: the first step of each turn has to,
    the second must not."""
    prebuilt = client_library("langgraph.prebuilt")
    memory = client_library("langgraph.checkpoint.memory").InMemorySaver()
    asked = []

    def population(city: str) -> str:
        """Look up how many people live in a city."""
        asked.append(city)
        return f"{len(asked)}23456 people live in {city}."

    def model(state, runtime):
        choice = "none" if state["messages"][-1].type == "tool" else "required"
        return chat_openai.bind_tools([population], tool_choice=choice, strict=True)
    agent = prebuilt.create_react_agent(model, [population], checkpointer=memory)
    settings = {"configurable": {"thread_id": "one"}}
    for turn, city in enumerate(["Oslo", "Rome"], 1):
        question = f"How many people live in {city}?"
        messages = agent.invoke({"messages": [("user", question)]}, settings)["messages"]
        assert [message.type for message in messages] == ["human", "ai", "tool", "ai"] * turn
        call, = messages[-3].tool_calls
        assert call["name"] == "population" and call["args"] == {"city": city}
        assert messages[-2].tool_call_id == call["id"]
        assert f"{turn}23456" in messages[-1].content.replace(",", "")
    assert asked == ["Oslo", "Rome"]


# --- lm-eval ----------------------------------------------------------------------------------

ITEMS = [
    ("The capital of France is", ["Paris", "London", "Madrid", "Vienna"]),
    ("The capital of Italy is", ["Rome", "Berlin", "Lisbon", "Athens"]),
    ("The capital of Japan is", ["Tokyo", "Seoul", "Beijing", "Bangkok"]),
    ("The opposite of hot is", ["cold", "blue", "round", "loud"]),
    ("The opposite of up is", ["down", "green", "sweet", "fast"]),
    ("Two plus two is", ["four", "nine", "seven", "zero"]),
    ("The day after Monday is", ["Tuesday", "Friday", "Sunday", "Saturday"]),
    ("The sun rises in the", ["east", "west", "north", "south"]),
    ("A baby dog is called a", ["puppy", "kitten", "calf", "chick"]),
    ("A baby cat is called a", ["kitten", "puppy", "foal", "lamb"]),
    ("Water freezes and becomes", ["ice", "sand", "wood", "fire"]),
    ("We see with our", ["eyes", "knees", "ears", "elbows"]),
    ("We hear with our", ["ears", "eyes", "toes", "hair"]),
    ("Bees make", ["honey", "milk", "wool", "eggs"]),
    ("A cow gives us", ["milk", "honey", "wine", "coal"]),
    ("The author of Hamlet is William", ["Shakespeare", "Clinton", "Wallace", "Tell"]),
    ("The planet closest to the sun is", ["Mercury", "Saturn", "Neptune", "Jupiter"]),
    ("A week has seven", ["days", "months", "years", "minutes"]),
    ("An hour has sixty", ["minutes", "days", "weeks", "years"]),
    ("To cut paper, use a pair of", ["scissors", "shoes", "socks", "wheels"]),
    ("When it rains, take an", ["umbrella", "elephant", "oven", "anchor"]),
    ("Grass is usually", ["green", "purple", "black", "orange"]),
    ("Birds fly with their", ["wings", "feet", "beaks", "eggs"]),
    ("Fish live in the", ["water", "fire", "sky", "desert"])]
TASK = """\
task: small_world
dataset_path: json
dataset_kwargs: {data_files: {test: "%s"}, cache_dir: "%s"}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture
def small_world(client_library, tmp_path):
    """A function that runs lm-eval's task over these items against a server:
    small_world(url, tokenizer's folder) -> (its results, the items as they were asked)."""
    lm_eval = client_library("lm_eval")
    data = tmp_path / "items.json"
    # the right choice is the first here, and at every place in the file
    rotated = [(text, choices[-place % 4:] + choices[:-place % 4], place % 4)
               for place, (text, choices) in enumerate(ITEMS)]
    data.write_text("\n".join(
        json.dumps({"text": text, "choices": choices, "answer": answer})
        for text, choices, answer in rotated), "utf-8")
    (tmp_path / "small_world.yaml").write_text(
        TASK % (data.as_posix(), (tmp_path / "cache").as_posix()), "utf-8")

    def run(url, tokenizer):
        return lm_eval.simple_evaluate(
            "local-completions", {
                "base_url": f"{url}/v1/completions", "model": "smollm2",
                "tokenizer_backend": "huggingface", "tokenizer": str(tokenizer),
                "max_retries": 1}, tasks=["small_world"], batch_size=16,
            task_manager=lm_eval.tasks.TaskManager(include_path=str(tmp_path),
                                                   include_defaults=False),
            bootstrap_iters=0), rotated
    return run


def likelihoods(found) -> list[float]:
    """Of every choice of every item, in their order."""
    samples = sorted(found["samples"]["small_world"], key=lambda sample: sample["doc_id"])
    return [float(response[0][0]) for sample in samples for response in sample["resps"]]


def test_lm_eval_finds_what_hugging_face_does(small_world, server, smollm2_folder,
                                              hf_smollm2):
    import torch
    from transformers import AutoTokenizer

    found, rotated = small_world(server.url, smollm2_folder)
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    contexts = [len(tokenizer.encode(text)) for text, choices, _ in rotated for _ in choices]
    texts = [tokenizer.encode(f"{text} {choice}") for text, choices, _ in rotated
             for choice in choices]
    longest = max(map(len, texts))
    with torch.no_grad():               # to the right of a text is what does not concern it
        rows = hf_smollm2(torch.tensor([ids + [0] * (longest - len(ids)) for ids in texts])
                          ).logits.log_softmax(-1)
    assert likelihoods(found) == pytest.approx(
        [sum(rows[place, at - 1, ids[at]].item() for at in range(start, len(ids)))
         for place, (start, ids) in enumerate(zip(contexts, texts))], abs=2e-3)
    assert found["results"]["small_world"]["acc,none"] >= 0.6       # by chance: 0.25


@pytest.mark.long
def test_a_leaderboard_sees_little_of_four_bits(small_world, served, smollm2, server,
                                                smollm2_folder, capsys):
    """What a task says of a model as it is, and of the same model in 4 bits."""
    from dataclasses import replace

    from gearworks.quantization.methods import round_model

    rounded = round_model(smollm2.model, "int4", 32).model
    whole, _ = small_world(server.url, smollm2_folder)
    with served(replace(smollm2, model=rounded), models=("smollm2",)) as other:
        fewer, _ = small_world(other.url, smollm2_folder)
    accuracies = [each["results"]["small_world"]["acc,none"] for each in (whole, fewer)]
    change = [abs(a - b) for a, b in zip(likelihoods(whole), likelihoods(fewer))]
    with capsys.disabled():
        print(f"\nlm-eval, {len(ITEMS)} items: float32 {accuracies[0]:.3f}, int4 in groups of "
              f"32 {accuracies[1]:.3f}; log-likelihoods differ by "
              f"{sum(change) / len(change):.3f} on average, by {max(change):.3f} at most")
    assert abs(accuracies[0] - accuracies[1]) <= 3 / len(ITEMS) and accuracies[1] >= 0.6
    # a question counts only when the order of its answers changes: the numbers move far more
    assert 0.3 < sum(change) / len(change) < 2
