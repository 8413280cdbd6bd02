"""Where the time of a step goes: its operators, one by one, beside what the machine allows."""
