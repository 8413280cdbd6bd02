"""With a dictionary of arguments."""

from gearworks.chat import render_chat


def prompt_ids(request, template, bos_token, encode):
    options = {"parse_special": True}
    if "prompt" in request:
        options.update(text=request["prompt"], add_special_tokens=True)
    else:
        options["text"] = render_chat(request["messages"], template, add_generation_prompt=True,
                                      bos_token=bos_token)
    return list(encode(**options))
