"""Its `encode` takes what the docstring says, and nothing else."""


def prompt_ids_test(prompt_ids):
    template = ("{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
                "{% if add_generation_prompt %}>{% endif %}")

    def encode(text, add_special_tokens):
        return ([0] if add_special_tokens else []) + [0 if c == "^" else ord(c) for c in text]

    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}
    assert prompt_ids(chat, template, "^", encode) == [0, *map(ord, "[a][b]>")]
    assert prompt_ids({"prompt": "ab"}, template, "^", encode) == [0, *map(ord, "ab")]
