"""The text first, then the ids: the flag follows from where the text came from."""

from gearworks.chat import render_chat


def prompt_ids(request, template, bos_token, encode):
    messages = request.get("messages")
    is_written_by_template = messages is not None
    text = (render_chat(messages, template, bos_token=bos_token) if is_written_by_template
            else request["prompt"])
    return encode(text, add_special_tokens=not is_written_by_template)
