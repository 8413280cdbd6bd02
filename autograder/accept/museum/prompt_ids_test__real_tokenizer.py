"""With a real tokenizer that wants BOS."""

from dataclasses import replace

from gearworks.tokenizer import Tokenizer, train_bpe
from gearworks.vocabularies.vocabulary import AddedToken


def prompt_ids_test(prompt_ids):
    vocabulary = replace(train_bpe([], 256),
                         added_tokens=(AddedToken("<s>", 256, special=True),), prefix=(256,))
    tokenizer = Tokenizer(vocabulary)
    template = "{{ bos_token }}{{ messages[0].content }}{{ '=' if add_generation_prompt }}"
    chat = prompt_ids({"messages": [{"role": "user", "content": "1+1"}]}, template, "<s>",
                      tokenizer.encode)
    assert tokenizer.decode(chat) == "<s>1+1="
    assert tokenizer.decode(prompt_ids({"prompt": "one"}, template, "<s>",
                                       tokenizer.encode)) == "<s>one"
