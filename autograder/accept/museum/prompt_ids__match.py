"""By the shape of the request."""

from gearworks.chat import render_chat


def prompt_ids(request, template, bos_token, encode):
    match request:
        case {"messages": messages}:
            return encode(render_chat(messages, template, bos_token=bos_token))
        case {"prompt": prompt}:
            return encode(prompt, True, True)
