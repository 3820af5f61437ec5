"""Chat templates of the strict kinds, written after what the well-known models ship."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Puts a system text of its own where none is given, as SmolLM2 does.
CHATML_DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are a model.<|im_end|>\n{% endif %}" + CHATML
)

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)

# Takes a system text, but writes it before the last question.
MISTRAL_LAST = (
    "{% if messages[0]['role'] == 'system' %}{% set said = messages[0]['content'] %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}"
    "{% for message in rest %}{% if message['role'] == 'user' %}"
    "[INST] {% if said is defined and loop.last %}{{ said + '\n\n' }}{% endif %}"
    "{{ message['content'] }} [/INST]{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)

GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
    "{% if message['role'] == 'assistant' %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

# Knows the roles user and assistant, and passes over all others in silence.
DEAF = (
    "{% for message in messages %}{% if message['role'] == 'user' %}Q: {{ message['content'] }}\n"
    "{% elif message['role'] == 'assistant' %}A: {{ message['content'] }}{{ eos_token }}\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)

# Leaves the thoughts out of all replies but the last, as the reasoning models do.
REASONING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and '</think>' in message['content'] and not loop.last %}"
    "{{ message['content'].split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ message['content'] }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)

DATED = (
    "Today Date: {{ strftime_now('%d %b %Y') }}"
    "{% set day = strftime_now('%Y-%m-%d') %} ({{ day }})\n" + CHATML
)

ALL = {
    "chatml": CHATML,
    "chatml_default_system": CHATML_DEFAULT_SYSTEM,
    "llama2": LLAMA2,
    "mistral": MISTRAL,
    "mistral_last": MISTRAL_LAST,
    "gemma": GEMMA,
    "deaf": DEAF,
    "reasoning": REASONING,
}
