"""One client for three servers: `gearworks serve`, its replicas behind Ray Serve, and vLLM.

    pip install openai
    python solutions/replicas/client.py http://127.0.0.1:8000

It lists the models, streams a chat, and asks several questions about each of several documents
that no server can know yet. The first question about a document computes it; how much of it
the others found in a cache says whether they came to a replica that had it.
"""

import argparse
import os
import random
import sys
from collections.abc import Iterator

from openai import APIConnectionError, APIStatusError, OpenAI

WORDS = ("time year people way day thing world life hand part child eye place work week case "
         "point home water room mother area money story month night book house friend hour "
         "game line city team minute idea body air food school door street table light voice "
         "tree wall star ship road field snow wind stone fire river bird bread song").split()


def document(words: int, chance: random.Random) -> str:
    """A text of so many short words, for a prompt to begin with."""
    return " ".join(chance.choices(WORDS, k=words))


def stream_chat(client: OpenAI, model: str) -> Iterator[str]:
    """The pieces of an answer, as they come."""
    with client.chat.completions.create(
            model=model, stream=True, max_tokens=32, temperature=0,
            messages=[{"role": "user", "content": "What is a gear?"}]) as chunks:
        for chunk in chunks:
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content


def ask(client: OpenAI, model: str, prompt: str) -> tuple[int, int | None, str]:
    """The tokens of a prompt, those that were cached if the server says so, and the replica."""
    answer = client.chat.completions.with_raw_response.create(
        model=model, max_tokens=4, messages=[{"role": "user", "content": prompt}])
    usage = answer.parse().usage
    details = usage.prompt_tokens_details
    return (usage.prompt_tokens, details.cached_tokens if details else None,
            answer.headers.get("x-replica", "-"))


def shared_prefixes(client: OpenAI, model: str, documents: int, questions: int, words: int,
                    chance: random.Random) -> None:
    """Ask about documents in turn, and print what each question found."""
    texts = [document(words, chance) for _ in range(documents)]
    print(f"{'document':>8}{'question':>10}{'prompt tokens':>15}{'cached':>8}  replica")
    first = repeated = found = 0
    for question in range(questions):
        for number, text in enumerate(texts):
            tokens, cached, replica = ask(
                client, model, f"{text}\nQuestion {question}: {document(8, chance)}?")
            print(f"{number:>8}{question:>10}{tokens:>15}"
                  f"{'-' if cached is None else cached:>8}  {replica}", flush=True)
            if question == 0:
                first += tokens
            else:
                repeated, found = repeated + tokens, found + (cached or 0)
    if repeated:
        print(f"{first} tokens of first questions, and {repeated} of later ones: {found} of "
              f"these, {found / repeated:.0%}, were cached")


def main() -> int:
    parser = argparse.ArgumentParser(description="Try a server with OpenAI's API.")
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--documents", type=int, default=4, metavar="N")
    parser.add_argument("--questions", type=int, default=4, metavar="N", help="about each")
    parser.add_argument("--words", type=int, default=300, metavar="N", help="of a document")
    parser.add_argument("--seed", type=int, help="the same documents again")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url.rstrip("/").removesuffix("/v1") + "/v1",
                    api_key=os.environ.get("OPENAI_API_KEY", "none"))
    try:
        models = [model.id for model in client.models.list()]
        print("models:", ", ".join(models))
        print("chat:", end=" ", flush=True)
        for piece in stream_chat(client, models[0]):
            print(piece, end="", flush=True)
        print("\n")
        shared_prefixes(client, models[0], options.documents, options.questions,
                        options.words, random.Random(options.seed))
    except (APIConnectionError, APIStatusError) as error:
        sys.exit(f"{options.url} did not answer as it should: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
