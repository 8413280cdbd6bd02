"""Counts BOS, and looks at both ends."""


def prompt_ids_test(prompt_ids):
    template = ("{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}{{ '>' if "
                "add_generation_prompt }}")

    def encode(text, parse_special=True, add_special_tokens=False):
        return ([1] * add_special_tokens
                + [1 if character == "#" else ord(character) for character in text])

    chat = prompt_ids({"messages": [{"role": "user", "content": "why"}]}, template, "#", encode)
    assert chat.count(1) == 1 and chat[0] == 1
    assert chat[-1] == ord(">")
    assert ord("w") in chat
    text = prompt_ids({"prompt": "why"}, template, "#", encode)
    assert text == [1, *map(ord, "why")]
