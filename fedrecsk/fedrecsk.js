// Recommend from a history in a browser or in Node: portable.py in JavaScript, step by step.

const FORMAT = 3;
const CAUTION = 30;

// A history has a row { item, value, weight, fade } for each item; fade is what time has left.

/** Return what is left of the weight of a like, 0 for other rows. */
function left({ value, weight, fade }) {
  return value > 0 ? fade * weight : 0;
}

/** Scores that add up rows of a matrix: EASE. */
class ItemWeights {
  static shapes = { matrix: "mm", unknown: "m" };

  /** Return the scores of all items; null if no row says anything. */
  scores(history) {
    if (!history.some(left)) return null;
    const scores = new Float64Array(this.m);
    for (const one of history) {
      const weight = left(one);
      const start = one.item * this.m;
      for (let i = 0; i < this.m; i++) scores[i] += weight * this.matrix[start + i];
    }
    return scores;
  }

  /** Return the part of a score that all users share, and each row's addition. */
  contributions(history, item) {
    return [0, history.map((one) => left(one) * this.matrix[one.item * this.m + item])];
  }
}

/** Scores offset_i + x_i . p whose p solves a ridge regression of the user's rows on x. */
class Ridge {
  static shapes = {
    power: "k", penalty: "kk", vectors: "mk", variance: "mk", prior: "mk", offset: "m",
    unknown: "m",
  };

  rates = false;
  confidence = 1;
  shift = 0;
  counts_values = false;
  reg = 0;
  reg_exponent = 0;
  n_items = 1;
  is_cautious = false;

  /** Return the scores of all items; null if no row says anything. */
  scores(history) {
    const equations = this.equations(history);
    if (!equations) return null;
    const { rows, matrix, share } = equations;
    const sum = rows.reduce((one, other) => one.map((number, f) => number + other[f]));
    const { vectors, offset, k } = this;
    const user = vectors.constructor.from(this.lean(share, solve(matrix, sum)));
    const scores = Float64Array.from(offset);
    for (let i = 0, place = 0; i < scores.length; i++) {
      let score = 0;
      for (let f = 0; f < k; f++) score += vectors[place++] * user[f];
      scores[i] += score;
    }
    return scores;
  }

  /** Return the part of a score that all users share, and each row's addition. */
  contributions(history, item) {
    const equations = this.equations(history);
    if (!equations) return [this.offset[item], history.map(() => 0)];
    const { counting, rows, matrix, share } = equations;
    const user = solve(matrix, this.lean(share, row(this.vectors, item, this.k)));
    const parts = new Map(counting.map((one, j) => [one, dot(rows[j], user)]));
    return [this.offset[item], history.map((one) => parts.get(one) ?? 0)];
  }

  /** Return which rows count, their right sides, the matrix, and the share of Q'Q p added to p. */
  equations(history) {
    const counting = history.filter(({ value }) => this.rates || value > 0);
    if (!counting.length) return null;
    const { penalty, power, variance, prior, shift, k } = this;
    const total = counting.reduce((sum, { weight }) => sum + weight, 0);
    const matrix = Float64Array.from(penalty, (number, f) => number * total ** power[f % k]);
    let confidence = 1;
    const rows = counting.map(({ item, value, weight, fade }) => {
      const x = row(this.vectors, item, k);
      const sure = this.confidence * weight * (this.counts_values ? value : 1);
      const extra = this.rates ? sure : fade * sure - shift;
      const pull = this.rates ? sure * (value - this.offset[item]) : fade * (1 + sure - shift);
      confidence += extra / this.n_items;
      return x.map((number, f) => {
        for (let g = 0; g < k; g++) matrix[f * k + g] += extra * number * x[g];
        if (variance.length) matrix[f * k + f] += extra * variance[item * k + f];
        return pull * number + (prior[item * k + f] ?? 0) / Math.sqrt(counting.length);
      });
    });
    // Items that a user does not have, all with r = 0, would outweigh a few likes.
    const rarity = this.is_cautious ? Math.max(total, 1) ** -3 : 0;
    const size = Math.max(Math.sqrt(dot(penalty, penalty)), 2 ** -126);
    const diagonal = this.reg * confidence ** this.reg_exponent + CAUTION * size * rarity;
    for (let f = 0; f < k; f++) matrix[f * k + f] += diagonal;
    return { counting, rows, matrix, share: rarity / size };
  }

  /** Return p + share Q'Q p. */
  lean(share, p) {
    return p.map((number, f) => number + share * dot(row(this.penalty, f, this.k), p));
  }
}

const RULES = { ItemWeights, Ridge };

function row(matrix, i, k) {
  return [...matrix.subarray(i * k, i * k + k)];
}

function dot(one, other) {
  return one.reduce((sum, number, f) => sum + number * other[f], 0);
}

/** Return p with matrix p = right, by Gaussian elimination. */
function solve(matrix, right) {
  const k = right.length;
  const rows = right.map((number, f) => [...row(matrix, f, k), number]);
  for (let f = 0; f < k; f++) {
    let pivot = f;
    for (let g = f; g < k; g++) if (Math.abs(rows[g][f]) > Math.abs(rows[pivot][f])) pivot = g;
    [rows[f], rows[pivot]] = [rows[pivot], rows[f]];
    check(rows[f][f], "Rows leave several solutions; export a model with a larger reg.");
    for (let g = 0; g < k; g++) {
      const times = g === f ? 0 : rows[g][f] / rows[f][f];
      if (times) for (let h = f; h <= k; h++) rows[g][h] -= times * rows[f][h];
    }
  }
  return rows.map((own, f) => own[k] / own[f]);
}

function check(holds, message) {
  if (!holds) throw new Error(message);
}

/** The public half of a fitted model.
 *
 * A history is a list of ids, oldest first, or { items, ratings, weights }.
 */
class PortableModel {
  constructor(rule, itemIds, codes, about) {
    Object.assign(this, { itemIds, about, rates: !!rule.rates, _rule: rule, _codes: codes });
  }

  /** Return the n best items, best first: [{ item, score }]. */
  recommend(history, n = 10, { exclude = [], candidates, excludeSeen = true, ...others } = {}) {
    const [unknown] = Object.keys(others);
    check(!unknown, `There is no option ${unknown}.`);
    check(Number.isInteger(n) && n > 0, `n should be a whole number of at least 1, got ${n}.`);
    const rows = this._history(history);
    const scores = this._scores(rows);
    if (candidates) {
      const eligible = new Set(this._known(candidates, "candidates", true));
      check(eligible.size, "candidates is empty; leave it out to choose from all items.");
      scores.forEach((_, code) => { if (!eligible.has(code)) scores[code] = -Infinity; });
    }
    const seen = excludeSeen ? rows.map(({ item }) => item) : [];
    for (const code of [...this._known(exclude, "exclude"), ...seen]) scores[code] = -Infinity;
    const best = largest(scores, n);
    return best.map((code) => ({ item: this.itemIds[code], score: this._clipped(scores[code]) }));
  }

  /** Return the scores of all items, in the order of itemIds. */
  predict(history) {
    return this._scores(this._history(history)).map((score) => this._clipped(score));
  }

  /** Return a score and its parts: rows { item, contribution }, the rest, and what is clipped. */
  explain(history, item) {
    const [wanted] = this._known([item], "item", true);
    const own = this._history(history);
    const scores = this._rule.scores(own);
    const raw = (scores ?? this._rule.unknown)[wanted];
    const [shared, parts] = this._rule.contributions(own, wanted);
    const rows = own
      .map((one, j) => ({ item: this.itemIds[one.item], contribution: parts[j] }))
      .sort((one, other) => Math.abs(other.contribution) - Math.abs(one.contribution));
    const rest = scores ? shared : raw;
    const score = this._clipped(raw);
    return { rows, rest, clipped: score - raw, score };
  }

  /** Return a new array of scores before they are clipped. */
  _scores(history) {
    return this._rule.scores(history) ?? Float64Array.from(this._rule.unknown);
  }

  _clipped(score) {
    const [low, high] = this.about.rating_scale ?? [score, score];
    return Math.min(Math.max(score, low), high);
  }

  /** Check a history, and return it with each known item once. */
  _history(history) {
    const { items, ratings, weights } = history?.items ? history : { items: history };
    const codes = this._known(items, "items");
    const { method, rating_scale: scale, half_life: halfLife } = this.about;
    const isRated = ratings || !this.rates || !codes.length;
    check(isRated, `${method} is a model of ratings; give { items, ratings }.`);
    const values = numbers(ratings, "ratings", codes);
    const sizes = numbers(weights, "weights", codes);
    check(sizes.every((weight) => weight >= 0), "weights should not be negative.");
    for (const value of this.rates ? values : []) {
      const range = scale?.join(" to ");
      check(value === this._clipped(value), `The rating ${value} is outside the scale, ${range}.`);
    }
    const merged = {};
    codes.forEach((item, last) => {
      const weight = sizes[last];
      if (item < 0 || !weight) return;
      const one = (merged[item] ??= { item, weight: 0, sum: 0, fade: 1 });
      one.weight += weight;
      one.sum += weight * values[last];
      one.last = last;
    });
    const rows = Object.values(merged);
    for (const one of rows) one.value = one.sum / one.weight;
    const newest = rows.filter(left).sort((one, other) => other.last - one.last);
    const [a, b] = halfLife ?? [Infinity, 0];
    newest.forEach((one, age) => { one.fade = 2 ** (-age / (a * newest.length ** b)); });
    return rows;
  }

  /** Return the code of each id, -1 for unknown, or throw if each must be known. */
  _known(ids, name, each = false) {
    const isList = typeof ids !== "string" && ids?.[Symbol.iterator];
    check(isList, `${name} should be a list of item ids, got ${ids}.`);
    const isString = typeof this.itemIds[0] === "string";
    const types = isString ? ["string"] : ["number", "bigint"];
    return Array.from(ids, (one) => {
      const isRight = types.includes(typeof one);
      check(isRight, `Item ids are ${types[0]}s; ${name} has the ${typeof one} ${String(one)}.`);
      const isExact = typeof one !== "number" || !(Math.abs(one) >= 2 ** 53);
      check(isExact, `${name} has ${one}, which may stand for several ids; give ids as BigInt.`);
      const code = this._codes.get(key(one)) ?? -1;
      check(code >= 0 || !each, `${name} has ${one}, which the model does not know; leave it out.`);
      return code;
    });
  }
}

function key(id) {
  return typeof id === "bigint" && Number.isSafeInteger(Number(id)) ? Number(id) : id;
}

/** Return a number for each code, 1 by default, or throw. */
function numbers(given, name, codes) {
  const list = Array.from(given ?? codes.map(() => 1));
  check(list.every(Number.isFinite), `${name} should be finite numbers.`);
  check(list.length === codes.length, `${name} should be one number for each of the items.`);
  return list;
}

/** Return the places of the n largest numbers above -Infinity, largest first, ties by place. */
function largest(scores, n) {
  const order = (i, j) => scores[j] - scores[i] || i - j;
  let found = [];
  let least = -Infinity;
  scores.forEach((score, i) => {
    if (score > least && found.push(i) === 2 * n) {
      found = found.sort(order).slice(0, n);
      least = scores[found[n - 1]];
    }
  });
  return found.sort(order).slice(0, n);
}

/** Read a model from the bytes of an exported file, which errors call `name`. */
export function load(file, name = "The file") {
  check(file?.byteLength >= 0, "load takes an ArrayBuffer or Uint8Array.");
  let header, model;
  try {
    const bytes = new Uint8Array(file.buffer ?? file, file.byteOffset, file.byteLength);
    const members = directory(bytes);
    header = JSON.parse(text(readArray(members, "header").numbers));
    check(Number.isFinite(header.format), "format is not a number");
    model = header.format > FORMAT ? null : read(header, members);
  } catch (cause) {
    const why = `is damaged, or was not written by export (${cause.message})`;
    throw new Error(`${name} ${why}; export or copy it again.`, { cause });
  }
  const { format, versions } = header;
  const cure = `this fedrecsk.js reads up to ${FORMAT}; take the one of that version`;
  check(model, `${name} has format ${format}, written by fedrecsk ${versions?.fedrecsk}; ${cure}.`);
  return model;
}

function text(bytes) {
  return new TextDecoder().decode(bytes);
}

/** Return content and checksum of the members of a zip file, by their names. */
function directory(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const short = (place) => view.getUint16(place, true);
  const long = (place) => view.getUint32(place, true);
  const end = bytes.length - 22;
  let place = long(end + 16);
  check(long(end) === 0x06054b50 && place + long(end + 12) === end, "its end is missing");
  const members = new Map();
  while (place < end) {
    check(long(place) === 0x02014b50, "its directory is broken");
    const [sum, size, start] = [16, 24, 42].map((at) => long(place + at));
    const data = start + 30 + short(start + 26) + short(start + 28);
    const next = place + 46 + short(place + 28);
    const name = text(bytes.subarray(place + 46, next));
    members.set(name, { content: bytes.slice(data, data + size), sum });
    place = next + short(place + 30) + short(place + 32);
  }
  return members;
}

const SUMS = Uint32Array.from({ length: 256 }, (_, sum) => {
  for (let bit = 0; bit < 8; bit++) sum = sum & 1 ? (sum >>> 1) ^ 0xedb88320 : sum >>> 1;
  return sum;
});

/** Return the CRC-32 of bytes. */
function checksum(bytes) {
  let sum = -1;
  for (let i = 0; i < bytes.length; i++) sum = SUMS[(sum ^ bytes[i]) & 255] ^ (sum >>> 8);
  return ~sum >>> 0;
}

const HEAD = RegExp(
  "^\ufffdNUMPY\x01\0..{'descr': '[<|]([iu][1248]|f[48]|U\\d+)', "
  + "'fortran_order': False, 'shape': \\(([\\d, ]*)\\), } *\n$", "s");
const TYPES = {
  i1: Int8Array, i2: Int16Array, i4: Int32Array, i8: BigInt64Array,
  u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, u8: BigUint64Array,
  f4: Float32Array, f8: Float64Array,
};

/** Return type, shape and numbers (or strings) of an array in NumPy's format. */
function readArray(members, name) {
  const { content, sum } = members.get(`${name}.npy`) ?? {};
  check(content, `${name} is missing`);
  check(checksum(content) === sum, `${name} has another checksum`);
  const start = 10 + content[8] + 256 * content[9];
  const head = HEAD.exec(text(content.subarray(0, start)));
  check(head, `${name} is not an array in the format of export`);
  const [, type, sizes] = head;
  const width = type[0] === "U" ? Number(type.slice(1)) : 1; // numbers in a string
  const Numbers = TYPES[type.replace(/U.*/, "u4")];
  const shape = (sizes.match(/\d+/g) ?? []).map(Number);
  const count = shape.reduce((product, n) => product * n, 1);
  const isWhole = start + count * width * Numbers.BYTES_PER_ELEMENT === content.length;
  check(isWhole, `${name} does not have its declared size`);
  let found = new Numbers(content.slice(start).buffer);
  if (type[0] === "U") {
    const string = (_, i) => String.fromCodePoint(...row(found, i, width)).replace(/\0+$/, "");
    found = Array.from({ length: count }, string);
  }
  return { type, shape, numbers: found };
}

/** Return the model of a file, or throw. */
function read(header, members) {
  const rule = new RULES[header.rule]();
  for (const [name, value] of Object.entries(header.settings)) {
    const isRight = typeof value === typeof rule[name] && (value > 0 || name !== "n_items");
    check(isRight && Number.isFinite(Number(value)), `${name} is ${value}`);
    rule[name] = value;
  }
  const ids = readArray(members, "item_ids");
  [rule.m] = ids.shape;
  for (const [name, letters] of Object.entries(rule.constructor.shapes)) {
    const array = name === "unknown" ? name : `rule_${name}`;
    const { type, shape, numbers } = readArray(members, array);
    if (name === "power") [rule.k] = shape;
    const want = Array.from(letters, (letter) => rule[letter]).join();
    const isLeftOut = /variance|prior/.test(name) && !numbers.length;
    const isRight = type[0] === "f" && (isLeftOut || shape.join() === want);
    const isFinite = numbers.every(Number.isFinite);
    check(isRight && isFinite, `${name} should hold finite floats of shape ${want}`);
    rule[name] = numbers;
  }
  const itemIds = Array.from(ids.numbers, key);
  const codes = new Map(itemIds.map((one, code) => [one, code]));
  const isFinite = ids.type[0] !== "f" || itemIds.every(Number.isFinite);
  check(codes.size === rule.m && isFinite, "item_ids should be distinct and finite");
  const { method, versions, rating_scale: scale, half_life: halfLife } = header;
  const [low, high] = scale === null ? [0, 0] : scale;
  const [a, b] = halfLife ?? [1, 0];
  const isRight = low <= high && a > 0 && b >= 0 && [low, high, a, b].every(Number.isFinite);
  check(isRight, `rating_scale is ${scale}, half_life ${halfLife}`);
  check(method && versions, "method or versions are missing");
  return new PortableModel(rule, itemIds, codes, header);
}
