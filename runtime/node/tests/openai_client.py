"""The `openai` Python package against a node: streaming and not. Arguments: base URL, model, question, expected text."""

import sys

from openai import BadRequestError, NotFoundError, OpenAI

url, model, question, expected = sys.argv[1:5]
client = OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0, timeout=60)
messages = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": question},
]

assert model in [entry.id for entry in client.models.list()]

whole = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=32)
assert whole.choices[0].message.content.strip() == expected, whole
assert whole.choices[0].finish_reason == "stop", whole
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens, whole

text, reason, usage = "", None, None
with client.chat.completions.create(
    model=model, messages=messages, temperature=0, max_tokens=32, stream=True, stream_options={"include_usage": True}
) as stream:
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            reason = chunk.choices[0].finish_reason or reason
        usage = chunk.usage or usage
assert text.strip() == expected, text
assert reason == "stop" and usage is not None and usage == whole.usage, (reason, usage)

logged = client.chat.completions.create(
    model=model, messages=messages, temperature=0, max_tokens=2, logprobs=True, top_logprobs=3
)
assert len(logged.choices[0].logprobs.content) == 2, logged
assert all(len(token.top_logprobs) == 3 for token in logged.choices[0].logprobs.content), logged

completion = client.completions.create(model=model, prompt="Once upon a time", temperature=0, max_tokens=4)
assert completion.choices[0].text and completion.usage.completion_tokens == 4, completion

for call, error in [
    (lambda: client.chat.completions.create(model="nobody", messages=messages), NotFoundError),
    (lambda: client.chat.completions.create(model=model, messages=messages, n=2), BadRequestError),
]:
    try:
        call()
    except error as caught:
        assert caught.body["message"], caught
    else:
        raise AssertionError(f"no {error.__name__}")
print("the openai client is content")
