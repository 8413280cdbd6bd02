"""Chat templates against `apply_chat_template`,
and what bad templates and bad messages come to. About 10 s."""

import pytest

from gearworks.chat import render_chat
from gearworks.errors import FormatError, GearworksError, ModelError
from gearworks.tokenizer import Tokenizer

TOOLS = [{"type": "function",
          "function": {"name": "weather", "description": "Weather & <wind> in a town's centre",
                       "parameters": {"type": "object",
                                      "properties": {"town": {"type": "string",
                                                              "description": "Köln, 東京"}},
                                      "required": ["town"]}}}]
CALL = {"id": "call_1", "type": "function",
        "function": {"name": "weather", "arguments": {"town": "Köln"}}}
CONVERSATIONS = {
    "one question": [{"role": "user", "content": "What is 2 < 3 & 'x'?"}],
    "system and many turns": [
        {"role": "system", "content": "  Be brief.\n"}, {"role": "user", "content": "Hi\n"},
        {"role": "assistant", "content": "Hello 👋"}, {"role": "user", "content": "中文?"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "\n\nBye <|im_end|>"}],
    "tool call": [{"role": "user", "content": "Weather?", "name": None},
                  {"role": "assistant", "content": None, "tool_calls": [CALL]},
                  {"role": "tool", "content": '{"wind": 3}', "tool_call_id": "call_1"},
                  {"role": "tool", "content": "<rain>", "tool_call_id": "call_2",
                   "tool_calls": None}, {"role": "assistant", "content": "Windy."},
                  {"role": "user", "content": "Thanks"}]}

# Written for these tests in the manner of well-known families: header tokens, roles that
# alternate, tools as JSON, answers of tools that are gathered into one turn.
TEMPLATES = {
    "headers": """{{ bos_token }}
{%- for message in messages %}
    {%- set content = message['content'] | default('', true) | trim %}
    {{- '<|header|>' + message['role'] + '<|/header|>\n\n' + content + eos_token }}
    {%- if message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {{- call.function.name + ': ' + call.function.arguments | tojson(indent=4) }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|/header|>\n\n' }}
{%- endif %}""",
    "tools and gathered answers": """{%- macro show(tool) %}{{ tool | tojson }}{% endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{% endif %}
    {{- '# Tools\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' }}{{ show(tool) }}
    {%- endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last_user=-1, found=false) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and not ns.found %}
        {%- set ns.found = true %}{% set ns.last_user = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' ~ message.content ~ '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {{- message.content if message.content is string else '' }}
        {%- for call in message.tool_calls | default([]) %}
            {{- '<tool_call>' }}{{ call.function | tojson }}{{ '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' ~ message.role }}
        {{- (' (last)' if loop.index0 == ns.last_user else '') ~ '\n' }}
        {{- message.content ~ '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
""",
    "blocks on their own lines": """
{% for message in messages %}
  {% if message.role == 'tool' %}
    {% continue %}
  {% endif %}
[{{ message.role | upper }}] {{ message.content }}
  {% generation %}
    {% set inside = message.role %}
    {{ inside }}
  {% endgeneration %}
{{ inside }}
  {% if loop.index > 4 %}
    {% break %}
  {% endif %}
{% endfor %}
{# nothing of this #}
{% if documents %}documents{% endif %}
{% set asked = messages | selectattr('role', 'equalto', 'user') %}
{{ asked | map(attribute='content') | list | tojson(separators=(',', ':')) }}
{{ tools | tojson(sort_keys=true) if tools is not none }}
{{ strftime_now('%Y') | length }} {{ unknown_name }} {{ dict(a=1).items() | list }}
""",
}


@pytest.fixture(scope="module")
def theirs(smollm2_folder):
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(smollm2_folder)


@pytest.fixture(scope="module")
def ours(smollm2_folder):
    return Tokenizer.from_file(smollm2_folder / "tokenizer.json")


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("conversation", ["one question", "system and many turns"])
def test_smollm2s_own_template(theirs, ours, conversation, add_generation_prompt):
    messages = CONVERSATIONS[conversation]
    text = render_chat(messages, theirs.chat_template,
                       add_generation_prompt=add_generation_prompt)
    assert text == theirs.apply_chat_template(messages, tokenize=False,
                                              add_generation_prompt=add_generation_prompt)
    assert ours.encode(text) == theirs.apply_chat_template(
        messages, add_generation_prompt=add_generation_prompt, return_dict=False)


def test_smollm2s_template_by_hand(theirs):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert (render_chat(messages, theirs.chat_template)
            == ("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
                "<|im_start|>assistant\n"))


@pytest.mark.parametrize("options", [{}, {"tools": TOOLS}, {"add_generation_prompt": False},
                                     {"enable_thinking": False}])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_of_other_families(theirs, template, conversation, options):
    messages, template = CONVERSATIONS[conversation], TEMPLATES[template]
    options = {"add_generation_prompt": True} | options
    expected = theirs.apply_chat_template(messages, chat_template=template, tokenize=False,
                                          **options)
    specials = {"bos_token": theirs.bos_token, "eos_token": theirs.eos_token}
    assert render_chat(messages, template, **specials, **options) == expected


def test_json_is_not_escaped_for_html():
    text = render_chat([{"role": "user", "content": ""}], "{{ tools | tojson }}",
                       tools=[{"a": "<b> & 'c' \u4e2d"}])
    assert text == """[{"a": "<b> & 'c' \u4e2d"}]"""


def test_template_output_holds_bos_already():
    """The trap that chat.py names: encoding must not add a second BOS."""
    vocabulary = {"added_tokens": [{"id": 3, "content": "<s>", "special": True}],
                  "pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"},
                  "model": {"type": "BPE", "vocab": {"H": 0, "i": 1, "Hi": 2},
                            "merges": ["H i"]},
                  "post_processor": {
                      "type": "TemplateProcessing", "special_tokens": {"<s>": {"ids": [3]}},
                      "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}}
    tokenizer = Tokenizer.from_json(vocabulary)
    text = render_chat([{"role": "user", "content": "Hi"}],
                       "{{ bos_token }}{{ messages[0].content }}", bos_token="<s>")
    assert tokenizer.encode("Hi", add_special_tokens=True) == [3, 2]
    assert tokenizer.encode(text) == [3, 2]
    assert tokenizer.encode(text, add_special_tokens=True) == [3, 3, 2]


def test_the_callers_messages_stay_as_they_are():
    messages = [{"role": "user", "content": "Hi"}]
    template = "{{ dict.update(messages[0], {'content': 'changed'}) }}{{ messages[0].content }}"
    assert render_chat(messages, template) == "Nonechanged"
    assert messages == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "messages, reason",
    [([], "none"), (None, "none"), ("Hi", "none"), ({"role": "user"}, "none"),
     (["Hi"], "message 0 is a str"), ([{"content": "Hi"}], "no role"),
     ([{"role": 3, "content": "Hi"}], "no role"),
     ([{"role": "user"}], r"message 0 \(user\)"),
     ([{"role": "user", "content": "a"}, {"role": "user", "content": 5}], "message 1"),
     ([{"role": "user", "content": None}], "not text"),
     ([{"role": "user", "content": {"text": "a"}}], "not text"),
     ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "not text"),
     ([{"role": "user", "content": object()}], "JSON"),
     ([{"role": "user", "content": b"Hi"}], "JSON")])
def test_bad_messages(messages, reason):
    with pytest.raises(ModelError, match=reason) as caught:
        render_chat(messages, "{{ messages }}")
    assert caught.value.hint


def test_lists_of_text_parts_are_for_the_template_to_read():
    messages = [{"role": "user",
                 "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert render_chat(
        messages, "{% for part in messages[0].content %}{{ part.text }}{% endfor %}") == "ab"
    with pytest.raises(ModelError, match="TypeError"):
        render_chat(messages, "{{ 'user: ' + messages[0].content }}")


@pytest.mark.parametrize(
    "template, reason",
    [("{% for message in messages %}", "line 1"), ("\n\n{% if %}", "line 3"),
     ("{{ messages", "line 1"), ("{{ messages | no_such_filter }}", "no_such_filter"),
     ("{% nonsense %}", "nonsense"), ("{% for a in b %}" * 30 + "{% endfor %}" * 30, "nested"),
     ("{{ " + "(" * 5000 + ")" * 5000 + " }}", ".")])
def test_bad_templates(template, reason):
    with pytest.raises(FormatError, match=reason):
        render_chat(CONVERSATIONS["one question"], template)


def test_a_template_may_refuse():
    template = ("{% if messages[0].role != 'system' %}{{ raise_exception('Start with a system "
                "message') }}{% endif %}")
    with pytest.raises(ModelError, match="Start with a system message"):
        render_chat(CONVERSATIONS["one question"], template)
    assert render_chat(CONVERSATIONS["system and many turns"], template) == ""


@pytest.mark.parametrize("template",
                         ["{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ missing.key }}",
                          "{{ missing() }}", "{{ range(10 ** 9) }}", "{% include 'other' %}",
                          "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}"])
def test_a_template_may_fail(template):
    with pytest.raises(ModelError, match="fails on these messages"):
        render_chat(CONVERSATIONS["one question"], template)


@pytest.mark.parametrize(
    "template",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}",
     "{{ messages[0].update({'role': 'system'}) }}", "{{ dict.__subclasses__() }}",
     "{{ dict.mro() }}", "{{ cycler.__init__.__globals__ }}", "{{ lipsum.__globals__['os'] }}",
     "{{ self.__init__.__globals__ }}", "{{ raise_exception.__globals__['json'] }}",
     "{{ '{0.__class__.__mro__}'.format(1) }}", "{{ (''|attr('__class__')).__mro__ }}",
     "{{ [''] | map(attribute='__class__.__mro__') | list }}"])
def test_no_template_leaves_the_sandbox(template):
    with pytest.raises(GearworksError) as caught:
        render_chat(CONVERSATIONS["one question"], template)
    assert isinstance(caught.value, FormatError) and "sandbox" in caught.value.why, caught.value


def test_attributes_that_hold_the_interpreter_read_as_nothing():
    for expression in ("''.__class__", "strftime_now.__globals__", "messages.__class__",
                       "''|attr('__class__')", "''['__class__']"):
        assert render_chat(CONVERSATIONS["one question"], "{{ " + expression + " }}") == ""
