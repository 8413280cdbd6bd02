"""With a dictionary of arguments."""

from gearworks.chat import render_chat


def prompt_ids(request, template, bos_token, encode):
    options = {"add_special_tokens": "prompt" in request}
    if options["add_special_tokens"]:
        text = request["prompt"]
    else:
        text = render_chat(request["messages"], template, add_generation_prompt=True,
                           bos_token=bos_token)
    return list(encode(text, **options))
