// The toolbar that shows the selection, and the startup.
const sections = [attention, prediction, written, patched, circuits];

function fillSelect(id, names, key) {
  const select = document.getElementById(id);
  select.replaceChildren(...names.map((text, value) => element("option", { value, text })));
  select.value = String(state[key]);
}

function updateBar(changes) {
  const [layers, heads] = sizes();
  if (!changes || changes.block !== undefined) {
    fillSelect("layer", Array.from({ length: layers }, (_, l) => l), "layer");
    fillSelect("head", Array.from({ length: heads }, (_, h) => h), "head");
  }
  document.getElementById("layer").value = String(state.layer);
  document.getElementById("head").value = String(state.head);
  const text = block().of;
  const i = tokenOf(text);
  const n = data.texts[text].length;
  const [token, counter] = [element("b", { text: data.texts[text][i], dir: "auto" }), element("span", { text: `${i}/${n - 1}` })];
  document.getElementById("chosen-token").replaceChildren(token, " ", counter);
  document.getElementById("back").disabled = i === 0;
  document.getElementById("forth").disabled = i === n - 1;
}

function listenToBar() {
  const step = (by) => () => {
    const text = block().of;
    choose({ token: { ...state.token, [text]: clamp(tokenOf(text) + by, data.texts[text].length) } });
  };
  document.getElementById("back").addEventListener("click", step(-1));
  document.getElementById("forth").addEventListener("click", step(1));
  for (const key of ["layer", "head"]) {
    document.getElementById(key).addEventListener("change", (event) => choose({ [key]: Number(event.target.value) }));
  }
  document.getElementById("block").addEventListener("change", (event) => {
    const [layers, heads] = arrays[`A${event.target.value}`].shape;
    choose({ block: Number(event.target.value), layer: clamp(state.layer, layers), head: clamp(state.head, heads) });
  });
}

// Start with the head that has the largest induction score, and with the masked token, or the last one.
function beginning() {
  for (const [text, tokens] of Object.entries(data.texts)) state.token[text] = tokens.includes("[MASK]") ? tokens.indexOf("[MASK]") : tokens.length - 1;
  if (!data.circuits?.scores) return;
  [{ layer: state.layer, head: state.head }] = headsByScore("induction");
}

async function begin() {
  await unpack();
  document.getElementById("name").textContent = data.name;
  document.getElementById("facts").textContent = data.facts.join(" · ");
  beginning();
  document.querySelector("main").hidden = false;
  fillSelect("block", data.attention.map((a) => a.title), "block");
  document.getElementById("kinds").hidden = data.attention.length === 1;
  updateBar();
  for (const name of ["prediction", "written", "patched", "circuits"]) document.getElementById(name).hidden = data[name] === null;
  for (const section of sections) section.repaint();
  listenToBar();
  attention.listen();
  listeners.push(updateBar, ...sections.map((section) => section.repaint));
  const anew = () => choose({ theme: true });
  dark.addEventListener("change", anew);
  for (const [event, value] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(event, () => {
      printing = value;
      anew();
    });
  }
  document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
  window.addEventListener("scroll", hideTip, { passive: true });
  document.documentElement.dataset.ready = "true";
}

begin().catch((error) => {
  const problem = document.getElementById("problem");
  problem.textContent = error.message;
  problem.hidden = false;
  console.error(error);
});
