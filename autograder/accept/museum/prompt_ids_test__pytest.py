"""With a table, and a failure raised by pytest."""

import pytest


def prompt_ids_test(prompt_ids):
    template = ("{{ bos_token }}"
                "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                "{% if add_generation_prompt %}assistant: {% endif %}")

    def encode(text, parse_special=True, add_special_tokens=False):
        return list(("@" if add_special_tokens else "") + text)

    message = {"role": "user", "content": "Hello"}
    expected = [({"messages": [message]}, "@user: Hello\nassistant: "),
                ({"prompt": "Hello"}, "@Hello")]
    for request, text in expected:
        got = "".join(prompt_ids(request, template, "@", encode))
        if got != text:
            pytest.fail(f"{got!r} instead of {text!r}")
