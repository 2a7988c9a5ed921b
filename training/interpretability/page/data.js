// The page's data: texts as JSON, and arrays of numbers to unpack.
const data = JSON.parse(document.getElementById("data").textContent);
const arrays = {};

async function unpack() {
  if (!("DecompressionStream" in window)) {
    throw new Error("This browser cannot decompress the page's numbers; use one from 2023 or later.");
  }
  const text = atob(document.getElementById("numbers").textContent.trim());
  const packed = Uint8Array.from(text, (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = await new Response(stream).arrayBuffer();
  for (const entry of data.arrays) {
    const kind = { 8: Uint8Array, 16: Uint16Array, 32: Uint32Array }[entry.bits];
    const size = entry.shape.reduce((a, b) => a * b, 1);
    arrays[entry.name] = { ...entry, numbers: new kind(bytes, entry.offset, size) };
  }
}

// An element of an array, such as at("written.heads", layer, head, token).
function at(name, ...place) {
  const array = arrays[name];
  let i = 0;
  for (let axis = 0; axis < array.shape.length; axis++) i = i * array.shape[axis] + place[axis];
  const n = array.numbers[i];
  return array.step !== 1 && n === 2 ** array.bits - 1 ? NaN : array.low + n * array.step;
}

function largest(name) {
  const array = arrays[name];
  let most = 0;
  for (const n of array.numbers) {
    if (n !== 2 ** array.bits - 1) most = Math.max(most, Math.abs(array.low + n * array.step));
  }
  return most;
}

// All heads with a score, the largest first.
function headsByScore(name) {
  const [layers, heads] = arrays[`scores.${name}`].shape;
  const list = [];
  for (let layer = 0; layer < layers; layer++) {
    for (let head = 0; head < heads; head++) list.push({ name: `${layer}.${head}`, value: at(`scores.${name}`, layer, head), layer, head });
  }
  return list.sort((a, b) => b.value - a.value);
}

// What is selected: an attention, its layer and head, and a token of each text; and the functions to call on changes.
const state = { block: 0, layer: 0, head: 0, token: {}, by: false };
const listeners = [];

function choose(changes) {
  Object.assign(state, changes);
  if (changes.token) state.token = { ...state.token };
  for (const listener of listeners) listener(changes);
}

const block = () => data.attention[state.block];
const sizes = () => arrays[`A${state.block}`].shape; // layers, heads, tokens that attend, tokens attended to
const tokenOf = (text) => state.token[text];
const weight = (layer, head, x, z) => at(`A${state.block}`, layer, head, x, z);
const clamp = (i, n) => Math.max(0, Math.min(n - 1, i));

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Whether a section has numbers to show; if it is a sentence that says why not, shows that on the first call.
function available(name, host, changes) {
  const isNote = typeof data[name] === "string";
  if (isNote && !changes) host.append(element("p", { class: "note", text: data[name] }));
  return data[name] !== null && !isNote;
}

const percent = (p) => (p < 0.00005 ? "< 0.01 %" : p >= 0.9995 ? "100 %" : p >= 0.0995 ? `${(100 * p).toFixed(1)} %` : `${(100 * p).toFixed(2)} %`);
const signed = (v, digits = 2) => `${v < 0 ? "−" : "+"}${Math.abs(v).toFixed(digits)}`;
const quoted = (token) => `“${token}”`;
