// What the engine's steps say together. Pure bookkeeping: nothing here touches the page.
//
// A record has `number`, `seconds`, `model_seconds`, `rows` (each with `name`, `start`,
// `count`, `guesses`, `prompt`, `blocks`), `admitted` (pairs of a name and its cached tokens),
// `preempted`, `finished`, `waiting`, `blocks_used`, `blocks_kept`, `blocks_empty`,
// `generated`.
// A name is "REQUEST-PROMPT/ANSWER"; `missed` steps before it did not reach this page.

const STEPS = 400;                  // so many are remembered
const SPEED_STEPS = 20;             // tokens/s is the mean over so many

export class History {
  steps = [];
  own = new Set();                  // names of this page's requests
  cached = 0;                       // prompt tokens that nobody had to compute, and
  computed = 0;                     // those that the model read
  generated = 0;
  #tables = new Map();              // of the sequences that run: their blocks
  #letters = new Map();             // of those that are drawn: numbers that stand for letters
  #freed = new Map();               // of blocks that were in use: when they were last

  add(record) {
    // a feed that begins anew may begin with a step that is known, or with another engine's
    if (this.steps.length && record.number <= this.steps.at(-1).number) {
      if (this.steps.some((step) => step.number === record.number)) return;
      this.steps = [];
      this.#tables.clear();
      this.#freed.clear();
    }
    this.steps.push(record);
    if (this.steps.length > STEPS) this.steps.shift();
    this.cached += record.admitted.reduce((sum, [, cached]) => sum + cached, 0);
    this.computed += record.rows.reduce((sum, row) => sum + (row.prompt ? row.count : 0), 0);
    this.generated += record.generated;
    for (const row of record.rows) this.#tables.set(row.name, row.blocks);
    for (const name of [...record.preempted, ...record.finished]) {
      this.#free(name, record.number);
    }
    this.#freeAborted(record);
  }

  // No record names a sequence that was aborted. It is gone when it has no row, and the tables
  // that are known hold more blocks than are in use.
  #freeAborted(record) {
    const here = new Set(record.rows.map((row) => row.name));
    const held = new Set([...this.#tables.values()].flat());
    if (held.size <= record.blocks_used) return;
    for (const name of this.#tables.keys()) {
      if (!here.has(name)) this.#free(name, record.number);
    }
  }

  #free(name, number) {
    // the last block of a table is seldom full, and only full ones are kept
    const full = (this.#tables.get(name) ?? []).slice(0, -1);
    full.forEach((block) => this.#freed.set(block, number));
    this.#tables.delete(name);
  }

  get last() {
    return this.steps.at(-1) ?? null;
  }

  // Whether nobody is left to compute for, as far as the last step tells.
  get isAtRest() {
    return !this.last || (this.last.waiting === 0
      && this.last.rows.every(({ name }) => this.last.finished.includes(name)));
  }

  isOwn(name) {
    return this.own.has(name.replace(/-\d+\/\d+$/, ""));
  }

  get tokensPerSecond() {
    const steps = this.steps.slice(-SPEED_STEPS);
    const seconds = steps.reduce((sum, step) => sum + step.seconds, 0);
    return seconds ? steps.reduce((sum, step) => sum + step.generated, 0) / seconds : 0;
  }

  // Of these steps: the sequences in the order in which they came, each with a letter.
  lanes(steps) {
    const names = new Set(steps.flatMap((step) => step.rows.map((row) => row.name)));
    for (const name of this.#letters.keys()) {
      if (!names.has(name) && !this.#tables.has(name)) this.#letters.delete(name);
    }
    for (const name of names) {
      if (!this.#letters.has(name)) this.#letters.set(name, freeLetter(this.#letters));
    }
    return [...names].map((name) => ({ name, ...this.face(name) }));
  }

  // How a sequence is called in pictures: its letter, its number for a colour, if it is ours.
  face(name) {
    const number = this.#letters.get(name) ?? 0;
    return { letter: letterOf(number), hue: number % 6, own: this.isOwn(name) };
  }

  // Every block of the pool: whose it is (none, one, or several share it), or if it is kept.
  // The records say how many blocks are kept, not which: those in use last are likeliest.
  blocks() {
    if (!this.last) return [];
    const { blocks_used: used, blocks_kept: kept, blocks_empty: empty } = this.last;
    const cells = Array.from({ length: used + kept + empty },
                             () => ({ owners: [], kept: false }));
    for (const [name, table] of this.#tables) {
      for (const block of table) cells[block]?.owners.push(name);
    }
    const free = [...this.#freed].filter(([block]) => cells[block]?.owners.length === 0)
      .sort((a, b) => b[1] - a[1]);
    for (const [block] of free.slice(0, kept)) cells[block].kept = true;
    return cells;
  }
}

function freeLetter(known) {
  const taken = new Set(known.values());
  let number = 0;
  while (taken.has(number)) number += 1;
  return number;
}

function letterOf(number) {
  const letter = String.fromCharCode(65 + number % 26);
  return number < 26 ? letter : letter + Math.floor(number / 26);
}

// A step in a sentence, for those who hear the picture and for those who point at it.
export function stepInWords(record, history) {
  const rows = record.rows.map((row) => {
    const { letter, own } = history.face(row.name);
    const who = own ? `${letter} (yours)` : letter;
    if (row.prompt) return `${who} reads ${row.count} prompt tokens from place ${row.start}`;
    return row.guesses ? `${who} decodes a token and checks ${row.guesses} guesses`
      : `${who} decodes a token`;
  });
  const other = [
    ...record.preempted.map((name) => `${history.face(name).letter} is preempted`),
    ...record.finished.map((name) => `${history.face(name).letter} is finished`)];
  const missed = record.missed ? ` ${record.missed} steps before it were missed.` : "";
  const ms = (seconds) => `${(1000 * seconds).toFixed(1)} ms`;
  return `Step ${record.number}, ${ms(record.seconds)} (model ${ms(record.model_seconds)}): `
    + `${[...rows, ...other].join("; ") || "nothing to do"}.${missed}`;
}
