// One answer as it comes: its text, its tokens, and how it ended.

// Of state "waiting", "streaming", then one of "done", "stopped" and "failed".
export class Answer {
  id = null;                        // the server's name for the request
  text = "";
  tokens = [];                      // as in the API: token, logprob, bytes, top_logprobs
  state = "waiting";
  finish = null;
  usage = null;
  trouble = null;
  #asked = performance.now();
  #first = null;
  #last = null;

  constructor(question) {
    this.question = question;
  }

  take(chunk) {
    this.usage = chunk.usage ?? this.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const text = choice.delta?.content ?? "";
    const tokens = choice.logprobs?.content ?? [];
    this.finish = choice.finish_reason ?? this.finish;
    if (!text && !tokens.length) return;
    this.text += text;
    for (const token of tokens) this.tokens.push(token);
    this.state = "streaming";
    this.#last = performance.now();
    this.#first ??= this.#last;
  }

  get isRunning() {
    return this.state === "waiting" || this.state === "streaming";
  }

  // What is worth knowing of it, in a line.
  get summary() {
    const said = [];
    const count = this.usage?.completion_tokens ?? this.tokens.length;
    if (count) said.push(`${count} ${count === 1 ? "token" : "tokens"}`);
    if (this.#first !== null) {
      const seconds = (this.#last - this.#first) / 1000;
      if (count > 1 && seconds > 0) said.push(`${((count - 1) / seconds).toFixed(1)} tokens/s`);
      said.push(`first after ${((this.#first - this.#asked) / 1000).toFixed(2)} s`);
    }
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    if (cached) {
      said.push(`${cached} of ${this.usage.prompt_tokens} prompt tokens from the cache`);
    }
    if (this.state === "stopped") said.push("stopped by you");
    if (this.finish === "length") said.push("cut off at the most tokens allowed");
    return said.join(" · ");
  }
}
